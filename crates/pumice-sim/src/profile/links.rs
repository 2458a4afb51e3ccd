//! Links that can replace a drive's own link.

use super::{Basis, Profile, Sourced};
use crate::{Error, Result};

/// A type of link: its name, rate in bytes per second without protocol overhead, duration of a
/// command in ns, and number of commands in flight.
struct Kind {
    name: &'static str,
    bytes_per_s: u64,
    command_ns: u64,
    depth: u64,
    basis: &'static str,
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "sata-1.5g",
        bytes_per_s: 140_000_000,
        command_ns: 8000,
        depth: 32,
        basis: "SATA 1.5 Gb/s: 150 MB/s, less headers",
    },
    Kind {
        name: "sata-3g",
        bytes_per_s: 280_000_000,
        command_ns: 5000,
        depth: 32,
        basis: "SATA 3 Gb/s: 300 MB/s, less headers",
    },
    Kind {
        name: "sata-6g",
        bytes_per_s: 560_000_000,
        command_ns: 4000,
        depth: 32,
        basis: "SATA 6 Gb/s: 600 MB/s, less headers",
    },
    Kind {
        name: "nvme-3x4",
        bytes_per_s: 3_500_000_000,
        command_ns: 500,
        depth: 1024,
        basis: "PCIe 3.0 with four lanes: 3.94 GB/s, less headers",
    },
    Kind {
        name: "nvme-4x4",
        bytes_per_s: 7_000_000_000,
        command_ns: 500,
        depth: 1024,
        basis: "PCIe 4.0 with four lanes: 7.88 GB/s, less headers",
    },
];

impl Profile {
    /// Returns the same drive on another link: `sata-1.5g`, `sata-3g`, `sata-6g`, `nvme-3x4` or
    /// `nvme-4x4`. The speed of its controller and flash is unchanged.
    ///
    /// # Errors
    /// `InvalidInput` with a list of the known names.
    pub fn with_link(mut self, name: &str) -> Result<Self> {
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let known = KINDS.map(|kind| kind.name).join(", ");
            let what = format!("no link is called {name}: use one of {known}");
            return Err(Error::InvalidInput(what.into()));
        };
        let number = |is: u64| Sourced { is, basis: Basis::Guess(kind.basis.to_owned()) };
        self.link.read_bytes_per_s = number(kind.bytes_per_s);
        self.link.write_bytes_per_s = number(kind.bytes_per_s);
        self.link.command_ns = number(kind.command_ns);
        self.link.depth = number(kind.depth);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a link replaces all properties of the old one, and the error for an unknown name lists
    //! the known ones.
    use super::*;

    #[test]
    fn a_link_is_replaced_as_a_whole() {
        let profile = Profile::find("ocz-vertex-2-50").unwrap();
        let faster = profile.clone().with_link("sata-6g").unwrap();
        assert_eq!(faster.link.read_bytes_per_s.is, 560_000_000);
        assert_eq!((&faster.controller, &faster.design), (&profile.controller, &profile.design));
        let error = profile.with_link("sata-9g").unwrap_err().to_string();
        assert!(error.contains("sata-9g: use one of sata-1.5g, sata-3g"), "{error}");
    }
}
