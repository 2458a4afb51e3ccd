//! Fuzzes `pumice_torture::fuzz::array`, which documents its input.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    pumice_torture::fuzz::array(input);
});
