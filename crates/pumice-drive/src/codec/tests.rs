//! Goal: payloads decode to the same bytes and never grow; damaged payloads are refused without
//! harm; giving up on incompressible data is temporary.
//!
//! Method: every codec over data of many kinds and lengths; liblz4 as a second opinion on LZ4
//! blocks in both directions; damaged payloads decoded between guard bytes.

use proptest::prelude::*;
use rand_xoshiro::rand_core::Rng;

use super::backoff::Backoff;
use super::*;
use crate::base::ErrorKind;
use crate::base::seed::random;

const CODECS: [Codec; 6] = [
    Codec::None,
    Codec::Lz4,
    Codec::Zstd { level: -7 },
    Codec::Zstd { level: -1 },
    Codec::Zstd { level: 1 },
    Codec::Zstd { level: 19 },
];

/// Lengths around every limit the codecs have: empty, LZ4's shortest match, blocks, where LZ4's
/// table changes, and beyond.
const LENGTHS: [usize; 13] =
    [0, 1, 4, 12, 13, 31, 4095, 4096, 4097, 16_383, 16_384, 65_536, 200_000];

/// Data of five kinds: constant, periodic, random words, half random, random.
fn sample(kind: u32, len: usize, seed: u64) -> Vec<u8> {
    const WORDS: &[u8; 128] = b"segment superblockletterserver  reading writing leaves  victims \
        garbage logical physicalchecksumaddress wear    channel program ";
    let mut noise = vec![0; len];
    random(seed).fill_bytes(&mut noise);
    let byte_at = |index: usize| match kind {
        0 => 42,
        1 => (index % 23) as u8,
        2 => WORDS[usize::from(noise[index / 8] % 16) * 8 + index % 8],
        3 if index % 4096 < 2048 => 0,
        _ => noise[index],
    };
    (0..len).map(byte_at).collect()
}

fn compress(compressor: &mut Compressor, source: &[u8]) -> (Encoding, Vec<u8>) {
    let mut target = vec![0xee; Compressor::target_bytes(source.len())];
    let (encoding, len) = compressor.compress(source, &mut target);
    target.truncate(len);
    (encoding, target)
}

#[test]
fn codecs_are_read_and_written_as_users_type_them() {
    for (text, codec) in [
        ("none", Codec::None),
        ("lz4", Codec::Lz4),
        ("zstd", Codec::Zstd { level: 1 }),
        ("zstd:-7", Codec::Zstd { level: -7 }),
        ("zstd:19", Codec::Zstd { level: 19 }),
    ] {
        assert_eq!(text.parse(), Ok(codec));
        assert_eq!(codec.to_string().parse(), Ok(codec));
    }
    for text in ["", "LZ4", "zstd:", "zstd:0", "zstd:-8", "zstd:20", "zstd:x", "lz4:1"] {
        let error = text.parse::<Codec>().unwrap_err();
        assert!(error.contains("none, lz4, zstd or zstd:LEVEL"), "{error}");
    }
}

#[test]
fn encodings_have_their_numbers_for_ever() {
    for (number, encoding) in
        [(0, Encoding::Store), (1, Encoding::Lz4), (2, Encoding::Zstd), (3, Encoding::Lost)]
    {
        assert_eq!(encoding as u8, number);
        assert_eq!(Encoding::from_u8(number), Some(encoding));
    }
    assert!((4..=255).all(|number| Encoding::from_u8(number).is_none()));
}

#[test]
fn every_codec_restores_every_kind_of_data_and_never_expands() {
    let mut decompressor = Decompressor::new();
    for codec in CODECS {
        for kind in 0..5 {
            // One compressor for all lengths, so that what a long payload leaves in the
            // tables meets a short one.
            let mut compressor = Compressor::new(codec);
            for len in LENGTHS.into_iter().chain([4096]) {
                let source = sample(kind, len, 1);
                let (encoding, encoded) = compress(&mut compressor, &source);
                if encoding == Encoding::Store {
                    assert_eq!(encoded, source);
                } else {
                    assert!(encoded.len() <= len - len.div_ceil(SAVING_DIVISOR));
                }
                let mut decoded = vec![0xdd; len];
                decompressor.decompress(encoding, &encoded, &mut decoded).unwrap();
                assert!(decoded == source, "{codec} kind {kind} length {len}");
            }
        }
    }
}

#[test]
fn data_is_encoded_when_that_saves_enough_and_only_then() {
    for codec in CODECS {
        let (encoding, encoded) = compress(&mut Compressor::new(codec), &sample(2, 4096, 1));
        let expected = match codec {
            Codec::None => Encoding::Store,
            Codec::Lz4 => Encoding::Lz4,
            Codec::Zstd { .. } => Encoding::Zstd,
        };
        assert_eq!(encoding, expected, "{codec}");
        assert_eq!(encoding == Encoding::Store, encoded.len() == 4096);

        let (encoding, _) = compress(&mut Compressor::new(codec), &sample(4, 4096, 1));
        assert_eq!(encoding, Encoding::Store, "{codec}");

        // A run of 100 bytes in random data saves something, but less than 1/32 of it.
        let mut source = sample(4, 4096, 1);
        source[1000..1100].fill(7);
        let (encoding, _) = compress(&mut Compressor::new(codec), &source);
        assert_eq!(encoding, Encoding::Store, "{codec}");
    }
}

#[test]
fn lz4_blocks_are_those_of_liblz4() {
    let mut decompressor = Decompressor::new();
    for kind in 0..4 {
        for len in LENGTHS.into_iter().filter(|&len| len >= 4095) {
            let source = sample(kind, len, 2);
            let (encoding, ours) = compress(&mut Compressor::new(Codec::Lz4), &source);
            assert_eq!(encoding, Encoding::Lz4);
            let mut decoded = vec![0; len];
            assert_eq!(lzzzz::lz4::decompress(&ours, &mut decoded).unwrap(), len);
            assert!(decoded == source);

            let mut theirs = Vec::new();
            lzzzz::lz4::compress_to_vec(&source, &mut theirs, 1).unwrap();
            decoded.fill(0);
            decompressor.decompress(Encoding::Lz4, &theirs, &mut decoded).unwrap();
            assert!(decoded == source);
        }
    }
}

/// Decodes between guard bytes and checks them. Returns the decoded bytes, if any.
fn decode_guarded(encoding: Encoding, source: &[u8], len: usize) -> Option<Vec<u8>> {
    const GUARD: usize = 256;
    let mut buffer = vec![0xa5; len + 2 * GUARD];
    let result = Decompressor::new().decompress(encoding, source, &mut buffer[GUARD..GUARD + len]);
    assert!(buffer[..GUARD].iter().all(|&byte| byte == 0xa5));
    assert!(buffer[GUARD + len..].iter().all(|&byte| byte == 0xa5));
    match result {
        Ok(()) => Some(buffer[GUARD..GUARD + len].to_vec()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            None
        }
    }
}

#[test]
fn a_length_other_than_the_targets_is_corrupt() {
    for codec in CODECS {
        let (encoding, encoded) = compress(&mut Compressor::new(codec), &sample(2, 4096, 3));
        assert!(decode_guarded(encoding, &encoded, 4096).is_some());
        for len in [0, 1, 4095, 4097, 8192] {
            assert!(decode_guarded(encoding, &encoded, len).is_none(), "{codec} {len}");
        }
    }
}

#[test]
fn truncated_payloads_are_corrupt() {
    for codec in CODECS {
        let (encoding, encoded) = compress(&mut Compressor::new(codec), &sample(3, 4096, 4));
        for len in 0..encoded.len() {
            assert!(decode_guarded(encoding, &encoded[..len], 4096).is_none(), "{codec} {len}");
        }
    }
}

proptest! {
    #[test]
    fn damaged_payloads_do_no_harm(
        codec in 0..CODECS.len(),
        kind in 0u32..4,
        seed: u64,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..4),
        len in prop::sample::select(vec![13usize, 100, 4096, 70_000]),
    ) {
        let source = sample(kind, len, seed);
        let (encoding, mut encoded) = compress(&mut Compressor::new(CODECS[codec]), &source);
        for (index, bit) in flips {
            let index = index.index(encoded.len());
            encoded[index] ^= 1 << bit;
        }
        // Decoding to the right length is allowed: checksums are checked elsewhere.
        decode_guarded(encoding, &encoded, len);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        source in prop::collection::vec(any::<u8>(), 0..600),
        encoding in 0u8..3,
        len in 0usize..6000,
    ) {
        decode_guarded(Encoding::from_u8(encoding).unwrap(), &source, len);
    }

    #[test]
    fn structured_data_survives(
        pieces in prop::collection::vec((any::<u8>(), 1usize..300, any::<bool>()), 0..60),
        codec in 0..CODECS.len(),
    ) {
        let mut source = Vec::new();
        for (byte, len, repeats) in pieces {
            let start = source.len();
            source.resize(start + len, byte);
            if !repeats {
                random(len as u64).fill_bytes(&mut source[start..]);
            }
        }
        let (encoding, encoded) = compress(&mut Compressor::new(CODECS[codec]), &source);
        prop_assert!(encoded.len() <= source.len());
        prop_assert_eq!(decode_guarded(encoding, &encoded, source.len()), Some(source));
    }
}

#[test]
fn a_fill_is_found_and_every_single_difference_is_noticed() {
    assert_eq!(fill_byte(&[]), None);
    for len in [1, 2, 7, 8, 9, 31, 4096] {
        for byte in [0, 1, 0x80, 0xff] {
            let mut block = vec![byte; len];
            assert_eq!(fill_byte(&block), Some(byte));
            for index in 0..len {
                block[index] ^= 1 << (index % 8);
                assert_eq!(fill_byte(&block), (len == 1).then_some(block[0]), "{len} {index}");
                block[index] = byte;
            }
        }
    }
}

#[test]
fn incompressible_streams_are_rarely_tried_and_never_given_up() {
    let mut backoff = Backoff::default();
    let mut skipped_run = 0;
    let mut tried = 0;
    for _ in 0..10_000 {
        if backoff.is_worth_trying() {
            backoff.record(false);
            tried += 1;
            skipped_run = 0;
        } else {
            skipped_run += 1;
            assert!(skipped_run <= FRAMES_MISSED_MAX);
        }
    }
    assert!((1000..1200).contains(&tried), "{tried}");
}

#[test]
fn one_success_starts_the_backoff_over() {
    /// Attempts until one is skipped, all failing, then the skips until the next attempt.
    fn fail_until_retried(backoff: &mut Backoff) -> (u32, u32) {
        let (mut attempts, mut skips) = (0, 0);
        while backoff.is_worth_trying() {
            backoff.record(false);
            attempts += 1;
        }
        while skips == 0 || !backoff.is_worth_trying() {
            skips += 1;
        }
        (attempts, skips)
    }
    let mut backoff = Backoff::default();
    let first = fail_until_retried(&mut backoff);
    assert_eq!(first, (16, 1));
    backoff.record(false);
    assert_eq!(fail_until_retried(&mut backoff), (0, 2));
    backoff.record(true);
    assert_eq!(fail_until_retried(&mut backoff), first);
}

#[test]
fn compressible_data_is_noticed_within_the_stated_number_of_frames() {
    let text = sample(2, 4096, 5);
    let noise = sample(4, 4096, 5);
    for codec in &CODECS[1..] {
        for noise_frames in 0..200 {
            let mut compressor = Compressor::new(*codec);
            for _ in 0..noise_frames {
                assert_eq!(compress(&mut compressor, &noise).0, Encoding::Store);
            }
            let missed = (0..100)
                .take_while(|_| compress(&mut compressor, &text).0 == Encoding::Store)
                .count();
            assert!(missed <= FRAMES_MISSED_MAX as usize, "{codec} after {noise_frames}");
            // Once noticed it is believed: a single incompressible frame changes nothing.
            compress(&mut compressor, &noise);
            assert_ne!(compress(&mut compressor, &text).0, Encoding::Store);
        }
    }
}
