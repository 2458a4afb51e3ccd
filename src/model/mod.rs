//! Drives in virtual time: what a drive would do, without owning it.
//!
//! * `profile`: what a drive is built of, in numbers that each say where they come from.
//! * `front`: the queue, the wire and the processor between a host and a drive's controller.
//! * `drive`: the controller of this program on simulated flash, behind such a front.
//! * `ftl`: a flash translation layer that holds stored sizes instead of bytes.
//! * `host`: a host that keeps so many requests to such a layer in flight.
//!
//! The same seed gives the same run. Deliberately knows no real drive that is attached to this
//! machine, no socket and no wall clock, and prints nothing.

pub mod drive;
pub mod front;
pub mod ftl;
pub mod host;
pub mod profile;
