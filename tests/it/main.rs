//! The built program as a user meets it: real clients, real servers, real files, real crashes.
//!
//! One binary, so that it is linked once. `harness` supports all of the tests; every other file is
//! one goal. Each test has a drive and a server of its own, so they may all run together.

mod harness;

mod access;
#[cfg(feature = "attach")]
mod attach;
mod bad_input;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_hosts;
#[cfg(feature = "bench")]
mod bench_presets;
#[cfg(feature = "bench")]
mod bench_report;
#[cfg(feature = "bench")]
mod bench_seeds;
#[cfg(feature = "bench")]
mod bench_sim;
#[cfg(feature = "bench")]
mod bench_target;
#[cfg(feature = "bench")]
mod bench_turns;
#[cfg(feature = "objects")]
mod bucket;
#[cfg(feature = "objects")]
mod bucket_follow;
mod cli_doc;
mod clones;
mod compact;
mod config;
mod crash;
mod crowd;
#[cfg(feature = "http")]
mod dashboard;
mod decoder;
#[cfg(feature = "bench")]
mod demo;
#[cfg(feature = "bench")]
mod detect;
mod device;
#[cfg(feature = "bench")]
mod drives;
mod encryption;
mod exports;
mod fio;
#[cfg(feature = "bench")]
mod forecast;
mod foreign;
mod format_doc;
mod full_host;
mod guest;
#[cfg(feature = "http")]
mod http;
mod list;
mod log;
mod manual;
mod mirror;
mod model;
mod nbd_client;
mod nbdinfo;
mod output;
mod package;
#[cfg(feature = "http")]
mod page;
#[cfg(feature = "bench")]
mod payload;
mod qemu;
#[cfg(feature = "bench")]
mod report;
#[cfg(feature = "bench")]
mod reproduce;
mod rescue;
mod resize;
mod restart;
mod rounds;
mod runbooks;
mod runner;
#[cfg(feature = "bench")]
mod scan;
#[cfg(feature = "bench")]
mod scan_disks;
mod schemas;
mod scrub;
mod serve;
mod set;
mod snapshot;
mod snapshot_exports;
mod space;
#[cfg(feature = "bench")]
mod tables;
mod terminal;
mod tls;
#[cfg(feature = "top")]
mod top;
mod transfer;
#[cfg(feature = "vhost")]
mod vhost;
mod warn;
