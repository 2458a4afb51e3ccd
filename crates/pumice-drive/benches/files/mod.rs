//! The user's own files as test data, for the benchmarks `cold` and `frame_size`.
//!
//! Files that cannot be listed or read are skipped, because a measurement needs a large and diverse
//! sample, not every file.

use std::fs;
use std::path::{Path, PathBuf};

use pumice_drive::base::units::BLOCK_BYTES;

/// Returns every n-th file below some directories, in the order of their names, each padded to
/// whole blocks. n is chosen such that the result has about `limit` bytes.
pub(crate) fn load(directories: &[String], limit: u64) -> Vec<u8> {
    let mut files = Vec::new();
    for directory in directories {
        collect(Path::new(directory), &mut files);
    }
    let stride = files.iter().map(|(_, bytes)| bytes).sum::<u64>() / limit.max(1) + 1;
    let mut data = Vec::new();
    for (path, _) in files.iter().step_by(stride as usize) {
        data.extend(fs::read(path).unwrap_or_default());
        data.resize(data.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    data
}

fn collect(directory: &Path, files: &mut Vec<(PathBuf, u64)>) {
    let mut entries: Vec<_> = fs::read_dir(directory).into_iter().flatten().flatten().collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => collect(&entry.path(), files),
            Ok(metadata) if metadata.is_file() => files.push((entry.path(), metadata.len())),
            _ => {}
        }
    }
}
