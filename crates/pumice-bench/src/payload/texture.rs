//! A library of units whose compressibility matches pieces of real data.
//!
//! A texture is one unit (4 KiB) of literals and copies. The share and the length of the copies
//! determine the saving of LZ4; the entropy of the literals determines the additional saving of an
//! entropy coder. Copies have distances that are multiples of the key length, and the low bits of
//! literals are uniform, so a texture XORed with a key within those bits is new data with the same
//! statistics. The savings of each texture are measured once, when the library is created.

use rand_xoshiro::rand_core::Rng;

use super::measure::Meter;
use super::pool::KEY_BYTES;
use super::profile::{Savings, UNIT_BYTES};
use pumice_drive::base::seed::{Random, random};
use pumice_drive::codec::Codec;

/// Entropies of a literal byte, in bits.
const LITERAL_BITS: [f64; 13] = [8.0, 7.5, 7.0, 6.5, 6.0, 5.5, 5.0, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0];

/// Number of copy densities for each entropy.
const DENSITIES: usize = 44;

/// Uniform low bits of a literal, if its entropy allows them. Eight such literals in a row suffice
/// for keys that never collide.
const UNIFORM_BITS: u32 = 4;

/// Number of groups of byte values above the uniform bits.
const GROUPS: usize = 16;

/// Minimum length of a copy in bytes, as in LZ4.
const COPY_BYTES_MIN: usize = 4;

/// Maximum distance of copies, in keys. It is short, so that little is lost if only the second half
/// of a texture is used.
const DISTANCE_KEYS_MAX: u64 = 4;

/// Number of a texture in its library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextureId(u16);

/// Textures and their savings.
pub(super) struct Library {
    bytes: Vec<u8>,
    masks: Vec<u64>,
    savings: Vec<Savings>,
    /// The nearest texture for each pair of savings in percent.
    nearest: Vec<TextureId>,
}

/// Rows of the table of nearest textures: one per percentage point.
const PERCENTS: usize = 101;

impl Library {
    /// Returns the library for a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = random(seed);
        let (bytes, masks, savings) = (Vec::new(), Vec::new(), Vec::new());
        let mut library = Self { bytes, masks, savings, nearest: Vec::new() };
        let mut meters = [Meter::new(Codec::Lz4), Meter::new(Codec::Zstd { level: 1 })];
        for bits in LITERAL_BITS {
            let literals = Literals::new(bits);
            for step in 0..DENSITIES {
                // The steps are finer if copies are nearly the whole unit.
                let density = 1.0 - (1.0 - step as f64 / (DENSITIES - 1) as f64).powf(1.5);
                let unit = weave(&literals, density, &mut random);
                let [lz4, zstd] = meters.each_mut().map(|meter| meter.add(&unit).fraction());
                library.bytes.extend(unit);
                library.masks.push(literals.mask());
                library.savings.push(Savings { lz4, zstd });
            }
        }
        library.nearest = (0..PERCENTS * PERCENTS)
            .map(|index| (index / PERCENTS, index % PERCENTS))
            .map(|(lz4, zstd)| Savings { lz4: lz4 as f64 / 100.0, zstd: zstd as f64 / 100.0 })
            .map(|savings| library.search(savings))
            .collect();
        library
    }

    /// Returns the texture nearest to these savings, which are rounded to one percent.
    pub(super) fn nearest(&self, wanted: Savings) -> TextureId {
        let [lz4, zstd] = [wanted.lz4, wanted.zstd].map(|part| (part * 100.0).round() as usize);
        self.nearest[lz4.min(PERCENTS - 1) * PERCENTS + zstd.min(PERCENTS - 1)]
    }

    fn search(&self, wanted: Savings) -> TextureId {
        let distance = |savings: &Savings| {
            let (lz4, zstd) = (savings.lz4 - wanted.lz4, savings.zstd - wanted.zstd);
            lz4 * lz4 + zstd * zstd
        };
        let all = self.savings.iter().enumerate();
        let nearest = all.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        TextureId(nearest.map_or(0, |(index, _)| index as u16))
    }

    /// Returns the savings of a texture.
    pub(super) fn savings(&self, texture: TextureId) -> Savings {
        self.savings[usize::from(texture.0)]
    }

    /// Returns the bytes of a texture, one unit.
    #[inline]
    pub(super) fn bytes(&self, texture: TextureId) -> &[u8] {
        &self.bytes[usize::from(texture.0) * UNIT_BYTES..][..UNIT_BYTES]
    }

    /// Returns the bits of eight bytes that a key may change.
    #[inline]
    pub(super) fn mask(&self, texture: TextureId) -> u64 {
        self.masks[usize::from(texture.0)]
    }
}

/// Bytes of a given entropy: the low bits are uniform, and the groups above them are geometrically
/// distributed.
struct Literals {
    uniform_bits: u32,
    /// Probability that a group is at most the group with this index.
    cumulative: [f64; GROUPS],
}

impl Literals {
    fn new(bits: f64) -> Self {
        let uniform_bits = UNIFORM_BITS.min(bits as u32);
        let group_bits = bits - f64::from(uniform_bits);
        let (mut low, mut high) = (0.0, 1.0);
        // Entropy grows with the ratio between neighbouring groups; 50 bisections are exact.
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            let fits = entropy(&geometric(middle)) < group_bits;
            (low, high) = if fits { (middle, high) } else { (low, middle) };
        }
        let mut sum = 0.0;
        let cumulative = geometric(low).map(|probability| {
            sum += probability;
            sum
        });
        Self { uniform_bits, cumulative }
    }

    fn draw(&self, random: &mut Random) -> u8 {
        let number = random.next_u64();
        let fraction = (number >> 11) as f64 / (1u64 << 53) as f64;
        let group = self.cumulative.iter().position(|&sum| fraction < sum).unwrap_or(0);
        let low = random.next_u64() & ((1 << self.uniform_bits) - 1);
        (group << self.uniform_bits) as u8 | low as u8
    }

    fn mask(&self) -> u64 {
        // At full entropy, there are no groups for a key to preserve.
        let full = self.cumulative[0] < 1.1 / GROUPS as f64;
        if full { u64::MAX } else { ((1 << self.uniform_bits) - 1) * 0x0101_0101_0101_0101 }
    }
}

fn geometric(quotient: f64) -> [f64; GROUPS] {
    let mut weights = [1.0; GROUPS];
    for index in 1..GROUPS {
        weights[index] = weights[index - 1] * quotient;
    }
    let sum: f64 = weights.iter().sum();
    weights.map(|weight| weight / sum)
}

fn entropy(probabilities: &[f64]) -> f64 {
    probabilities.iter().filter(|p| **p > 0.0).map(|p| -p * p.log2()).sum()
}

/// Returns one unit in which about `density` of the bytes are copies.
///
/// If there are few copies, they are short; if there are many, they are long, as in real data. They
/// have 8 bytes on average at low densities, up to 50 if half of the bytes are copies, and hundreds
/// at the end.
fn weave(literals: &Literals, density: f64, random: &mut Random) -> Vec<u8> {
    let mut unit: Vec<u8> = Vec::with_capacity(UNIT_BYTES);
    let copy_mean = (8.0 + 12.0 * density) / (1.002 - density * density);
    let literal_mean = copy_mean * (1.0 - density) / density.max(1e-9);
    while unit.len() < UNIT_BYTES {
        let run = exponential(literal_mean, random).max(1.0) as usize;
        for _ in 0..run.min(UNIT_BYTES - unit.len()) {
            unit.push(literals.draw(random));
        }
        // Copies need literals of at least one key length before them.
        let keys = (unit.len() / KEY_BYTES) as u64;
        if keys == 0 || density == 0.0 {
            continue;
        }
        let distance = (1 + random.next_u64() % keys.min(DISTANCE_KEYS_MAX)) as usize * KEY_BYTES;
        let copy = COPY_BYTES_MIN + exponential(copy_mean, random) as usize;
        for _ in 0..copy.min(UNIT_BYTES - unit.len()) {
            unit.push(unit[unit.len() - distance]);
        }
    }
    unit
}

fn exponential(mean: f64, random: &mut Random) -> f64 {
    let fraction = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-mean * fraction.ln()).min(UNIT_BYTES as f64)
}
