//! The built program as a user sees it: real clients, real servers, real files, real crashes.
//!
//! One binary, so that it is linked once. `harness` supports all of the tests; every other file has
//! one goal, in a folder with related files. Each test has a drive and a server of its own, so they
//! may all run together.

mod harness;

mod clients;
#[cfg(feature = "bench")]
mod measuring;
#[cfg(feature = "bench")]
mod modelling;
#[cfg(feature = "objects")]
mod objects;
mod observing;
mod program;
mod serving;
mod snapshots;
mod storage;
