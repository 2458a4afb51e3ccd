//! Flash drives in virtual time.
//!
//! * `profile`: what a drive is built of, in numbers that each say where they come from.
//!
//! Deliberately knows no real drive that is attached to this machine, no socket and no wall clock,
//! and prints nothing.

pub mod profile;
