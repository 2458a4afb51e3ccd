//! The file system of a path: its type, options and fill level.

use std::path::{Path, PathBuf};

use super::files::Files;
use super::{Facts, existing};
use pumice_drive::base::units::format_size;

/// A mounted file system.
pub(super) struct Mount {
    /// Type, such as `ext4`.
    pub(super) kind: String,
    /// The mounted source, which is a device in most cases.
    pub(super) source: String,
    /// Mount options and file system options.
    pub(super) options: String,
}

impl Mount {
    /// Returns the file system of a path.
    ///
    /// Source: Linux, Documentation/filesystems/proc.rst, mountinfo.
    pub(super) fn of(files: &Files, path: &Path) -> Option<Self> {
        let path = existing(path)?;
        let mounts = files.text("/proc/self/mountinfo")?;
        // If several mounts have the longest mount point, the last one is used, because it covers
        // the earlier ones.
        let mut best: Option<(usize, Self)> = None;
        for line in mounts.lines() {
            let Some((place, mount)) = parsed(line) else { continue };
            let longest = best.as_ref().map_or(0, |(bytes, _)| *bytes);
            if path.starts_with(&place) && place.len() >= longest {
                best = Some((place.len(), mount));
            }
        }
        best.map(|(_, mount)| mount)
    }

    /// Returns the folder in which an overlay stores new files.
    pub(super) fn upper(&self) -> Option<PathBuf> {
        let is_overlay = self.kind == "overlay";
        let mut options = self.options.split(',').filter(|_| is_overlay);
        options.find_map(|option| option.strip_prefix("upperdir=")).map(PathBuf::from)
    }

    /// Adds the type, options, size and fill level. `path` must be on the file system.
    pub(super) fn describe(&self, path: &Path, facts: &mut Facts) {
        facts.add("file system", Some(format!("{} on {}", self.kind, self.source)));
        facts.add("mount options", Some(self.options.clone()));
        let room = existing(path).and_then(|path| rustix::fs::statvfs(&path).ok());
        let Some(room) = room.filter(|room| room.f_blocks > 0) else { return };
        facts.add(
            "file system size",
            Some(format_size(room.f_blocks.saturating_mul(room.f_frsize))),
        );
        let used = room.f_blocks.saturating_sub(room.f_bfree) as f64 / room.f_blocks as f64;
        facts.add("file system used", Some(format!("{:.1} %", used * 100.0)));
    }
}

/// Parses the mount point and file system from a line of mountinfo.
fn parsed(line: &str) -> Option<(String, Mount)> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(4);
    let (place, options) = (unescaped(front.next()?), front.next()?);
    let mut back = back.split(' ');
    let (kind, source) = (back.next()?.to_owned(), unescaped(back.next()?));
    let options = format!("{options},{}", back.next().unwrap_or_default());
    Some((place, Mount { kind, source, options: unescaped(&options) }))
}

/// Returns a path from mountinfo with its octal escapes resolved.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    //! Goal: mounts are parsed in the kernel's format.
    use super::*;

    #[test]
    fn blanks_in_places_are_read() {
        assert_eq!(unescaped("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
        let line = "44 27 7:1 / /mnt/a\\040b rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,\
                    upperdir=/u/up,workdir=/w";
        let (place, mount) = parsed(line).expect("a mount");
        assert_eq!((place.as_str(), mount.kind.as_str()), ("/mnt/a b", "overlay"));
        assert_eq!(mount.upper(), Some("/u/up".into()));
        assert!(parsed("44 27 7:1 / /mnt").is_none());
    }
}
