//! Space that no data needs is reused, and a full drive refuses writes before it acknowledges them.

mod ageing;
mod collecting;
mod filling;
mod low_room;
mod resize;
mod reusing;
mod shrinking;
mod space;

use super::*;
