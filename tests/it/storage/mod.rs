//! The life of a drive: its settings and sizes, its devices, its crashes and its repair.

mod compact;
mod crash;
mod device;
mod encryption;
mod full_host;
mod list;
mod mirror;
mod model;
mod rescue;
mod resize;
mod scrub;
mod set;
mod space;
