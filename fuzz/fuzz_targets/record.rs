//! Fuzzes `pumice_torture::fuzz::record`, which says what its input is.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    pumice_torture::fuzz::record(input);
});
