//! Damage and failures of media are found, repaired or reported, and never returned as data.

mod crafted;
pub(super) mod damage;
mod echo;
mod failures;
mod hostile;
mod lost;
mod mirror;
mod mirror_speed;
pub(super) mod parity;
mod parity_of_data;
pub(super) mod rebuilding;
mod scrub;
mod strangers;
mod watching;

use super::*;
