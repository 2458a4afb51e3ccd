//! Space that no data needs is used again, and a full drive refuses before it acknowledges.

mod ageing;
mod collecting;
mod filling;
mod low_room;
mod resize;
mod reusing;
mod shrinking;
mod space;

use super::*;
