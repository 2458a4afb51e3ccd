//! Third-party programs on a drive: NBD clients, kernels, file systems, databases, guests.

#[cfg(feature = "attach")]
mod attach;
mod fio;
mod foreign;
mod guest;
mod nbd_client;
mod nbdinfo;
mod qemu;
mod rounds;
