//! Goal: payloads decode to the original bytes and never grow; damaged payloads are refused without
//! harm; the decision to stop compressing incompressible data is temporary.
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

/// Lengths around every limit of the codecs: empty, LZ4's shortest match, blocks, the switch of
/// LZ4's table, and beyond.
const LENGTHS: [usize; 13] =
    [0, 1, 4, 12, 13, 31, 4095, 4096, 4097, 16_383, 16_384, 65_536, 200_000];

/// Returns data of one of five kinds: constant, periodic, random words, half random, random.
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
        [Encoding::Store, Encoding::Lz4, Encoding::Zstd, Encoding::Lost, Encoding::Chunks]
            .into_iter()
            .enumerate()
    {
        let number = number as u8;
        assert_eq!(encoding as u8, number);
        assert_eq!(Encoding::from_u8(number), Some(encoding));
    }
    assert!((5..=255).all(|number| Encoding::from_u8(number).is_none()));
}

#[test]
fn every_codec_restores_every_kind_of_data_and_never_expands() {
    let mut decompressor = Decompressor::new();
    for codec in CODECS {
        for kind in 0..5 {
            // All lengths share one compressor, so that a short payload meets the remains of a long
            // one in the tables.
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

/// Returns eight blocks, some of them compressible.
fn mixed_blocks(seed: u64) -> Vec<u8> {
    (0..8)
        .flat_map(|block| sample([2, 4, 3, 2, 1, 4, 2, 3][block], 4096, seed + block as u64))
        .collect()
}

/// Returns a block of a payload, decoded from its chunk alone.
fn block_of(table: &ChunkTable, payload: &[u8], index: usize) -> Result<Vec<u8>, crate::Error> {
    let before = index - table.chunk_of(index).start;
    let mut start = vec![0xdd; (before + 1) * 4096];
    let stored = payload.get(table.range(index)).unwrap_or_default();
    Decompressor::new().decompress_chunk(table, index, stored, &mut start)?;
    Ok(start.split_off(before * 4096))
}

#[test]
fn each_block_is_restored_from_its_chunk() {
    for codec in CODECS {
        let mut compressor = Compressor::new(codec).with_form(FrameForm::Chunks);
        let half = |blocks: usize| sample(3, blocks * 4096, 1);
        let sources = [mixed_blocks(1), half(5), half(8), mixed_blocks(2), sample(4, 32768, 1)];
        for source in sources {
            let count = source.len() / 4096;
            let (encoding, encoded) = compress(&mut compressor, &source);
            assert_eq!(decode_guarded(encoding, &encoded, source.len()).as_ref(), Some(&source));
            let table = if encoding == Encoding::Store {
                ChunkTable::of_stored(&encoded).unwrap()
            } else {
                assert_eq!(encoding, Encoding::Chunks, "{codec}");
                assert!(encoded.len() <= source.len() - source.len() / SAVING_DIVISOR);
                ChunkTable::of(&encoded, count).unwrap()
            };
            assert_eq!((table.payload_bytes(), table.blocks()), (encoded.len(), count));
            let stored = table.stored().try_into().unwrap();
            assert_eq!(ChunkTable::from_stored(stored, count).unwrap(), table);
            for (index, block) in source.chunks(4096).enumerate() {
                let decoded = block_of(&table, &encoded, index).unwrap();
                assert!(decoded == block, "{codec}: block {index} of {count}");
            }
        }
    }
}

/// The blocks of a frame, and the frames of a stream, compress alike.
#[test]
fn chunks_have_as_many_blocks_as_compress_to_a_page_or_two() {
    let mut compressor = Compressor::new(Codec::Lz4).with_form(FrameForm::Chunks);
    // A quarter, a half and three quarters of noise: 3, 2 and 2 blocks compress to 6 KB.
    for (noise, chunk) in [(512, 8), (1024, 6), (2048, 3), (3072, 2)] {
        let block = |seed| [sample(4, noise, seed), vec![0; 4096 - noise]].concat();
        let source: Vec<u8> = (0..8).flat_map(block).collect();
        // The first frame of the kind still has chunks like those of the frame before.
        compress(&mut compressor, &source);
        let (encoding, encoded) = compress(&mut compressor, &source);
        if chunk == 8 {
            // No entries are necessary.
            assert_eq!(encoding, Encoding::Lz4, "{noise}");
            continue;
        }
        let table = ChunkTable::of(&encoded, 8).unwrap();
        assert_eq!(table.chunks().next(), Some(0..chunk), "{noise}");
        assert_eq!(table.chunks().map(|blocks| blocks.len()).sum::<usize>(), 8);
    }
}

#[test]
fn whole_chunks_are_cut_from_a_payload_as_they_are() {
    let source = mixed_blocks(3);
    let mut compressor = Compressor::new(Codec::Lz4).with_form(FrameForm::Chunks);
    let (_, encoded) = compress(&mut compressor, &source);
    let table = ChunkTable::of(&encoded, 8).unwrap();
    let starts: Vec<_> = table.chunks().map(|blocks| blocks.start).collect();
    assert!((3..8).contains(&starts.len()), "too tame a test: {starts:?}");
    let is_boundary = |at| at == 8 || starts.contains(&at);
    for (from, to) in (0..8).flat_map(|from| (from + 1..=8).map(move |to| (from, to))) {
        let mut target = vec![0xee; 40_000];
        let cut = cut_chunks(&table, &encoded, from..to, &mut target);
        assert_eq!(cut.is_some(), is_boundary(from) && is_boundary(to), "{from} to {to}");
        let Some((encoding, len)) = cut else { continue };
        let wanted = &source[from * 4096..to * 4096];
        assert!(len <= wanted.len());
        assert!(decode_guarded(encoding, &target[..len], wanted.len()).unwrap() == wanted);
    }
    // A damaged chunk is never cut out of its frame. Damaged entries affect no cut, because the
    // table holds their values.
    let mut damaged = encoded.clone();
    damaged[table.range(7).end - 1] ^= 1;
    damaged[9] ^= 1;
    let mut target = vec![0; 40_000];
    let (first, last) = (table.chunk_of(0), table.chunk_of(7));
    assert_eq!(cut_chunks(&table, &damaged, last, &mut target), None);
    let (encoding, len) = cut_chunks(&table, &damaged, first.clone(), &mut target).unwrap();
    let wanted = &source[..first.end * 4096];
    assert!(decode_guarded(encoding, &target[..len], wanted.len()).unwrap() == wanted);
    assert_eq!(cut_chunks(&table, &encoded[..40], first.clone(), &mut target), None);
    assert_eq!(cut_chunks(&table, &encoded, first, &mut [0; 100]), None);
}

/// Guards against a part of a frame that is longer than its blocks: no space is reserved for that.
#[test]
fn blocks_that_would_be_cut_for_nothing_are_not() {
    let noise = sample(4, 4096, 1);
    let (text, short) = block_of_encoded_len(1000);
    let (_, long) = block_of_encoded_len(4084);
    let payload = payload_of(&[(1, 1000, &short), (0, 4096, &noise), (1, 4084, &long)]);
    let table = ChunkTable::of(&payload, 3).unwrap();
    let mut target = vec![0; 20_000];
    assert_eq!(cut_chunks(&table, &payload, 1..3, &mut target), None);
    assert_eq!(cut_chunks(&table, &payload, 2..3, &mut target), Some((Encoding::Lz4, 4084)));
    assert_eq!(cut_chunks(&table, &payload, 1..2, &mut target), Some((Encoding::Store, 4096)));
    let (encoding, len) = cut_chunks(&table, &payload, 0..2, &mut target).unwrap();
    let expected = [&text[..], &noise].concat();
    assert!(decode_guarded(encoding, &target[..len], 8192) == Some(expected));
}

#[test]
fn one_block_or_none_that_compresses_is_no_payload_of_chunks() {
    let mut compressor = Compressor::new(Codec::Lz4).with_form(FrameForm::Chunks);
    assert_eq!(compress(&mut compressor, &sample(2, 4096, 1)).0, Encoding::Lz4);
    assert_eq!(compress(&mut compressor, &sample(2, 5000, 1)).0, Encoding::Lz4);
    assert_eq!(compress(&mut compressor, &sample(4, 32 << 10, 1)).0, Encoding::Store);
    assert_eq!(compress(&mut compressor, &sample(2, 36 << 10, 1)).0, Encoding::Lz4);
}

#[test]
fn a_damaged_chunk_is_noticed_and_no_other() {
    let source = mixed_blocks(2);
    let mut compressor = Compressor::new(Codec::Lz4).with_form(FrameForm::Chunks);
    let (encoding, encoded) = compress(&mut compressor, &source);
    let table = ChunkTable::of(&encoded, 8).unwrap();
    for at in (table.range(0).start..encoded.len()).step_by(97) {
        let mut damaged = encoded.clone();
        damaged[at] ^= 0x10;
        assert!(decode_guarded(encoding, &damaged, source.len()).is_none());
        for index in 0..8 {
            let is_hit = table.range(index).contains(&at);
            let decoded = block_of(&table, &damaged, index);
            assert_eq!(decoded.is_err(), is_hit, "block {index}, byte {at}");
        }
    }
    for len in 0..encoded.len() {
        assert!(decode_guarded(encoding, &encoded[..len], source.len()).is_none(), "{len}");
        assert!(ChunkTable::of(&encoded[..len], 8).is_err());
    }
    for count in [0, 1, 7, 9, 16] {
        assert!(decode_guarded(encoding, &encoded, count * 4096).is_none(), "{count} blocks");
    }
    assert!(decode_guarded(encoding, &encoded, source.len() - 1).is_none());
    assert!(block_of(&table, &encoded, 8).is_err());
}

/// Builds a payload of chunks from the encoding, the length in the entry, and the stored bytes of
/// each block. Encoding 3 continues a chunk.
fn payload_of(blocks: &[(u16, usize, &[u8])]) -> Vec<u8> {
    let entry = |&(encoding, len, stored): &(u16, usize, &[u8])| {
        let word = len as u16 | encoding << 13;
        [&word.to_le_bytes()[..], &crate::base::checksum::crc32(stored).to_le_bytes()].concat()
    };
    let stored = blocks.iter().flat_map(|(_, _, stored)| stored.to_vec());
    blocks.iter().flat_map(entry).chain(stored).collect()
}

/// Returns a block whose LZ4 encoding has `len` bytes, and that encoding.
fn block_of_encoded_len(len: usize) -> (Vec<u8>, Vec<u8>) {
    let block = |noise: usize| [sample(4, noise, 9), vec![0; 4096 - noise]].concat();
    let encode = |noise: usize| (block(noise), lz4_flex::block::compress(&block(noise)));
    (1..4096).map(encode).find(|(_, encoded)| encoded.len() == len).unwrap()
}

/// Payloads with valid checksums that no compressor writes. The decoder in Python refuses the same
/// ones.
#[test]
fn impossible_payloads_of_chunks_are_refused() {
    let noise = sample(4, 4096, 1);
    let (text, short) = block_of_encoded_len(1000);
    let (_, long) = block_of_encoded_len(4084);
    let good = (1, 1000, &short[..]);
    let raw = (0, 4096, &noise[..]);
    let decode = |blocks: &[(u16, usize, &[u8])]| {
        decode_guarded(Encoding::Chunks, &payload_of(blocks), blocks.len() * 4096)
    };
    let expected = [&text[..], &noise].concat();
    assert!(decode(&[good, raw]) == Some(expected));
    // The payload is as long as its content, so it could be mistaken for it.
    assert_eq!(payload_of(&[raw, (1, 4084, &long)]).len(), 8192);
    // A chunk of two blocks, and one of three.
    let pair = sample(2, 8192, 5);
    let encoded = lz4_flex::block::compress(&pair);
    let (chunk, more) = ((1, encoded.len(), &encoded[..]), (3, 0, &[][..]));
    assert!(decode(&[chunk, more]) == Some(pair.clone()));
    assert!(decode(&[chunk, more, raw]) == Some([&pair[..], &noise].concat()));
    for (what, blocks) in [
        ("a chunk that is shorter than its blocks", &[chunk, more, more][..]),
        ("a chunk that is longer than its blocks", &[good, chunk]),
        ("nothing that is continued", &[more, good]),
        ("a raw block that is continued", &[good, raw, more]),
        ("a continuation with bytes", &[chunk, (3, 1000, &short)]),
        ("blocks as they are", &[raw, raw]),
        ("no shorter than its content", &[raw, (1, 4084, &long[..])]),
        ("one block", &[good]),
        ("too many blocks", &[good; 9]),
        ("no block", &[]),
        ("an empty block", &[good, (0, 0, &[])]),
        ("an empty block, encoded", &[good, (1, 0, &[])]),
        ("a block that is stored, and too short", &[good, (0, 1000, &noise[..1000])]),
        ("a block that is encoded, and too long", &[good, (1, 4096, &noise)]),
        ("a block longer than a block", &[good, good, (1, 4097, &[1; 4097])]),
        ("an unknown encoding", &[good, (5, 1000, &short)]),
        ("chunks in chunks", &[good, (4, 1000, &short)]),
    ] {
        assert!(decode(blocks).is_none(), "{what}");
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
fn lz4_blocks_match_liblz4() {
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
        form in prop::sample::select(vec![FrameForm::Solid, FrameForm::Chunks]),
        kind in 0u32..4,
        seed: u64,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..4),
        len in prop::sample::select(vec![13usize, 100, 4096, 32_768, 70_000]),
    ) {
        let source = sample(kind, len, seed);
        let mut compressor = Compressor::new(CODECS[codec]).with_form(form);
        let (encoding, mut encoded) = compress(&mut compressor, &source);
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
    /// Returns the number of failing attempts until one is skipped, and of skips until the next
    /// attempt.
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
            // Once the change is noticed, it takes effect: a single incompressible frame changes
            // nothing.
            compress(&mut compressor, &noise);
            assert_ne!(compress(&mut compressor, &text).0, Encoding::Store);
        }
    }
}
