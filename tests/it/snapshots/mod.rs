//! Snapshots, clones and transfers.

mod clones;
mod snapshot;
mod snapshot_exports;
mod transfer;
