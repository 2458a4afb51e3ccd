//! Simulated drives.

mod drives;
mod forecast;
mod reproduce;
mod tables;
