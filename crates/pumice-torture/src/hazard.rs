//! The hazards of a world, and how often each is drawn.
//!
//! A world has a hazard with the chance stated by its weight, in percent. The draw has a random
//! stream of its own, so that other weights do not change the drive of a seed.

use pumice_drive::base::seed::random;
use rand::RngExt;

/// An adverse event of a world, in addition to crashes and transient faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hazard {
    /// Bits flip under a served drive and stay flipped.
    Rot,
    /// Sectors under a served drive cannot be read until they are written again.
    BadReads,
    /// Sectors can never be read or written.
    BadWrites,
    /// A power loss leaves sectors that cannot be read until they are written again.
    TornUnreadable,
    /// One read fails or returns a wrong bit while the drive opens.
    WrongOpening,
    /// A write reports success and changes nothing.
    LostWrites,
    /// A write reports success and goes to another place.
    MisdirectedWrites,
    /// All data is of one kind.
    Content,
    /// Thousands of requests to a nearly full drive with hot and cold data.
    Age,
    /// Hosts scrub the drive while they use it.
    Scrub,
    /// Hosts change the size and the capacity of the drive while they use it.
    Resize,
    /// In the end the drive is extracted and rebuilt.
    Rescue,
    /// Hosts take and delete snapshots while they use the drive.
    Snapshots,
    /// Hosts read and send snapshots, which another drive receives.
    Transfers,
    /// Hosts make clones of snapshots, which others use.
    Clones,
    /// Many snapshots of a small drive are kept, and segments that they need are emptied
    /// repeatedly.
    Retention,
    /// The drive is encrypted, and hosts replace its key.
    Encryption,
    /// Other users fill the file system that holds the drive's file, and free space again.
    Crowd,
}

/// A hazard's name, weight by default, and description.
struct Entry {
    hazard: Hazard,
    name: &'static str,
    percent: u8,
    about: &'static str,
}

const fn entry(hazard: Hazard, name: &'static str, percent: u8, about: &'static str) -> Entry {
    Entry { hazard, name, percent, about }
}

const COUNT: usize = 18;

/// All hazards, in the order of their numbers.
const ENTRIES: [Entry; COUNT] = [
    entry(Hazard::Rot, "rot", 10, "bits flip under a served drive and stay flipped"),
    entry(Hazard::BadReads, "bad-reads", 10, "sectors that cannot be read until rewritten"),
    entry(Hazard::BadWrites, "bad-writes", 0, "sectors that can never be read or written"),
    entry(Hazard::TornUnreadable, "torn", 0, "power losses that leave unreadable sectors"),
    entry(Hazard::WrongOpening, "opening", 15, "a failed read or a wrong bit in an opening"),
    entry(Hazard::LostWrites, "lost", 5, "writes that report success and change nothing"),
    entry(Hazard::MisdirectedWrites, "misdirected", 5, "writes that go to another place"),
    entry(Hazard::Content, "content", 25, "all data of one kind"),
    entry(Hazard::Age, "age", 3, "thousands of requests, hot and cold data, nearly full"),
    entry(Hazard::Scrub, "scrub", 20, "hosts scrub the drive"),
    entry(Hazard::Resize, "resize", 10, "hosts resize the drive"),
    entry(Hazard::Rescue, "rescue", 10, "extract and rebuild in the end"),
    entry(Hazard::Snapshots, "snapshots", 20, "hosts take and delete snapshots"),
    entry(Hazard::Transfers, "transfers", 30, "snapshots are read, sent and received elsewhere"),
    entry(Hazard::Clones, "clones", 40, "clones of snapshots are made, written and flattened"),
    entry(Hazard::Retention, "retention", 10, "many snapshots are kept, and segments emptied"),
    entry(Hazard::Encryption, "encryption", 25, "encrypted drives, and hosts replace the key"),
    entry(Hazard::Crowd, "crowd", 15, "others fill the file system of the drive's file"),
];

const _: () = {
    let mut number = 0;
    while number < COUNT {
        assert!(ENTRIES[number].hazard as usize == number, "an entry in the wrong place");
        number += 1;
    }
};

impl Hazard {
    /// Returns a list of all hazards with their default weights, one a line.
    pub fn list() -> String {
        let line = |entry: &Entry| {
            format!("  {:<12} {:>3} %  {}\n", entry.name, entry.percent, entry.about)
        };
        ENTRIES.iter().map(line).collect()
    }
}

/// The weight of each hazard in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights([u8; COUNT]);

impl Default for Weights {
    fn default() -> Self {
        Self(std::array::from_fn(|number| ENTRIES[number].percent))
    }
}

impl Weights {
    /// Returns weights of zero.
    pub fn none() -> Self {
        Self([0; COUNT])
    }

    /// Returns weights of zero except for one hazard, which every world has.
    pub fn only(hazard: Hazard) -> Self {
        Self::none().and(hazard)
    }

    /// Returns these weights with one more hazard that every world has.
    #[must_use]
    pub fn and(mut self, hazard: Hazard) -> Self {
        self.0[hazard as usize] = 100;
        self
    }

    /// Sets a weight as given on the command line: `KIND=PERCENT`, or `all=PERCENT`.
    ///
    /// # Errors
    /// A description of the expected form.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let expected = || {
            let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
            let names = names.join(", ");
            format!(
                "invalid value '{text}' for --weight: expected KIND=PERCENT with a kind of all, \
                 {names}"
            )
        };
        let (name, percent) = text.split_once('=').ok_or_else(expected)?;
        let percent = percent.parse().ok().filter(|&percent: &u8| percent <= 100);
        let percent = percent.ok_or_else(expected)?;
        if name == "all" {
            self.0 = [percent; COUNT];
            return Ok(());
        }
        let number = ENTRIES.iter().position(|entry| entry.name == name).ok_or_else(expected)?;
        self.0[number] = percent;
        Ok(())
    }

    /// Returns the arguments that set these weights; empty for the default.
    pub fn arguments(&self) -> String {
        let default = Self::default();
        let changed = (0..COUNT).filter(|&number| self.0[number] != default.0[number]);
        let argument =
            |number: usize| format!(" --weight {}={}", ENTRIES[number].name, self.0[number]);
        changed.map(argument).collect()
    }

    /// Draws the hazards of a world.
    pub(super) fn draw(&self, seed: u64) -> Hazards {
        // An arbitrary constant keeps this stream apart from the stream that draws the drive.
        let mut random = random(seed ^ 0x6861_7a61_7264_7321);
        let mut drawn = self.0.map(|percent| random.random_range(0..100) < percent);
        if drawn[Hazard::Retention as usize] {
            drawn[Hazard::Snapshots as usize] = true;
            drawn[Hazard::Age as usize] = false;
        }
        // A misdirected write takes space that is not accounted for.
        drawn[Hazard::Crowd as usize] &= !drawn[Hazard::MisdirectedWrites as usize];
        Hazards(drawn)
    }
}

/// The hazards of one world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hazards([bool; COUNT]);

impl Hazards {
    /// Returns whether the world has a hazard.
    pub(super) fn has(self, hazard: Hazard) -> bool {
        self.0[hazard as usize]
    }

    /// Returns whether stored bytes are damaged while the drive serves.
    pub(super) fn damages(self) -> bool {
        let kinds = [
            Hazard::Rot,
            Hazard::BadReads,
            Hazard::BadWrites,
            Hazard::LostWrites,
            Hazard::MisdirectedWrites,
        ];
        kinds.into_iter().any(|hazard| self.has(hazard))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: weights are read as they are printed, and decide the hazards of a world.
    use super::*;

    #[test]
    fn arguments_set_the_weights_they_were_made_of() {
        assert_eq!(Weights::default().arguments(), "");
        let wanted = Weights::only(Hazard::Rot).and(Hazard::Age);
        let mut read = Weights::default();
        let arguments = wanted.arguments();
        arguments.split(" --weight ").skip(1).for_each(|text| read.set(text).unwrap());
        assert_eq!(read, wanted);
        for text in ["", "rot", "rot=", "rot=101", "rot=-1", "rust=1", "=1"] {
            assert!(read.set(text).unwrap_err().contains("misdirected"), "{text}");
        }
    }

    #[test]
    fn a_weight_is_a_chance() {
        let mut weights = Weights::only(Hazard::Rot);
        weights.set("age=30").unwrap();
        let drawn: Vec<Hazards> = (0..1000).map(|seed| weights.draw(seed)).collect();
        let count = |hazard| drawn.iter().filter(|hazards| hazards.has(hazard)).count();
        assert_eq!((count(Hazard::Rot), count(Hazard::LostWrites)), (1000, 0));
        assert!((250..350).contains(&count(Hazard::Age)));
    }
}
