//! Creates drives in buckets, and journals for them.
//!
//! The journal records its bucket. Once created, the journal is the path of the drive for every
//! subcommand; `s3://BUCKET/NAME` is the state of the bucket without the journal, and can only be
//! read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::{Args, Created, check_place, encrypted, free_bytes, spec, text};
use crate::cli::{Outcome, print, print_schema, size};
use crate::environment;
use crate::objects::{BucketPlace, S3, host};
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_drive::controller::{Spec, create};
use pumice_drive::crypt::Cipher;
use pumice_drive::media::file::{FileMedium, FileOptions};
use pumice_drive::media::tier::{BucketView, Durable, Options, Shape, Tier};
use pumice_drive::runtime::{Backend, Runtime};

/// Flags of `create` for a drive in a bucket.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct BucketArgs {
    /// Local file for a drive in a bucket, created by this command: it receives every write, and is
    /// the PATH of the drive for all other commands
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,

    /// Size of the journal, at least 16 segments: it stores writes until they are
    /// committed, and caches recently used data
    #[arg(long, value_parser = size, default_value = "4G", value_name = "SIZE")]
    journal_size: u64,

    /// Create a new journal for a drive in the bucket whose journal is lost. The machine with the
    /// old journal loses access, and its uncommitted changes are lost
    #[arg(long, requires = "journal")]
    take_over: bool,

    /// Longest time until a change is in the bucket, in seconds
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600), default_value = "5",
        value_name = "SECONDS")]
    lag: u32,

    /// Maximum amount of data that is only in the journal, at most a quarter of the journal: beyond
    /// that, writes wait
    #[arg(long, value_parser = size, default_value = "256M", value_name = "SIZE")]
    lag_max: u64,

    /// When a flush of a drive in a bucket returns: once all data is in the journal, or once it is
    /// in the bucket
    #[arg(long, value_enum, default_value_t = DurableIn::Journal, value_name = "journal|bucket")]
    durable: DurableIn,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum DurableIn {
    /// Once all data is in the journal
    Journal,
    /// Once all data is in the bucket
    Bucket,
}

impl BucketArgs {
    fn options(&self, place: &BucketPlace) -> Options {
        let mut options = Options::default();
        options.lag_ns = u64::from(self.lag) * 1_000_000_000;
        options.lag_bytes_max = self.lag_max;
        options.durable = match self.durable {
            DurableIn::Journal => Durable::Local,
            DurableIn::Bucket => Durable::Bucket,
        };
        options.place = place.to_string();
        options.host = host();
        options
    }

    /// Returns the number of segments that fit in the journal.
    fn slots(&self, segment_bytes: u32) -> Result<u32> {
        let slots = u32::try_from(self.journal_size / u64::from(segment_bytes)).unwrap_or(u32::MAX);
        if slots < 16 || self.lag_max > self.journal_size / 4 {
            let segment = format_size_exact(segment_bytes.into());
            bail!(
                "a journal of {} is too small: expected 16 segments of {segment} and four times \
                 --lag-max ({})",
                format_size(self.journal_size),
                format_size(self.lag_max)
            );
        }
        Ok(slots)
    }
}

/// Returns the bucket that an argument names.
///
/// # Errors
/// The name is malformed; flags of buckets were given for a file or device.
pub(super) fn of(args: &Args) -> Result<Option<BucketPlace>> {
    let place = BucketPlace::of(&args.path)?;
    if place.is_none() && args.bucket.journal.is_some() {
        bail!("{}: --journal is for a drive at s3://BUCKET/NAME", args.path.display());
    }
    Ok(place)
}

/// Creates a drive in a bucket, or a journal for one.
///
/// # Errors
/// The specification is impossible; there is a drive, or with --take-over, none; the bucket or the
/// journal cannot be used.
pub(super) fn run(args: &Args, place: &BucketPlace) -> Result<Outcome> {
    if !args.members.is_empty() || args.mirror || args.concat {
        bail!("{place}: a drive in a bucket has no other files or devices");
    }
    if args.preallocate || args.force {
        bail!("{place}: --preallocate and --force are for files and block devices");
    }
    if args.bucket.take_over {
        if args.size.is_some() || args.capacity.is_some() || args.encrypt {
            bail!("{place}: a drive that is taken over keeps its size and its keys");
        }
        take_over(place, &args.bucket)?;
        if !args.json {
            print(&format!("created a journal for {place}\n"))?;
        }
        return Ok(Outcome::Good);
    }
    if args.size.is_none() && args.capacity.is_none() {
        bail!("{place}: a bucket has no size: choose one with --size");
    }
    let segment_bytes = super::segment_bytes(args)?;
    let (spec, cipher, recovery_code) = encrypted(args, spec(args, segment_bytes)?)?;
    let geometry = spec.geometry().with_context(|| place.to_string())?;
    make(place, &args.bucket, &spec, &cipher)?;
    let journal = args.bucket.journal.as_deref();
    let created = Created {
        path: place.to_string(),
        uuid: spec.uuid,
        size_bytes: spec.size_bytes,
        capacity_bytes: geometry.capacity_bytes(),
        segment_bytes,
        codec: args.codec.to_string(),
        members: Vec::new(),
        medium_bytes: journal.and_then(|path| fs::metadata(path).ok()).map_or(0, |file| file.len()),
        free_bytes: journal.and_then(free_bytes),
        preallocated: false,
        encrypted: args.encrypt,
        recovery_code: recovery_code.map(|code| code.to_string()),
    };
    if args.json {
        print_schema("create-1", &created)?;
    } else {
        print(&text(&created))?;
    }
    Ok(Outcome::Good)
}

fn make(place: &BucketPlace, args: &BucketArgs, spec: &Spec, cipher: &Cipher) -> Result<()> {
    let segment_bytes = spec.segment_bytes;
    let shape = Shape { uuid: spec.uuid, segment_bytes, slots: args.slots(segment_bytes)? };
    on_new_journal(place, args, shape, async |medium, store, clock| {
        let (nonce, options) = (environment::new_identity(), args.options(place));
        let mut tier = Tier::create(medium, store, clock, shape, nonce, options).await?;
        tier.set_cipher(cipher.clone());
        create(&tier, spec).await?;
        tier.finish().await
    })
}

fn take_over(place: &BucketPlace, args: &BucketArgs) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let segment_bytes = runtime.block_on(async {
        let store = S3::new(place)?;
        store.check().await?;
        BucketView::open(store, runtime.clone()).await.map(|view| view.segment_bytes())
    });
    let segment_bytes = segment_bytes.with_context(|| place.to_string())?;
    let slots = args.slots(segment_bytes)?;
    let shape = Shape { uuid: uuid::Uuid::nil(), segment_bytes, slots };
    on_new_journal(place, args, shape, async |medium, store, clock| {
        let (nonce, options) = (environment::new_identity(), args.options(place));
        let tier = Tier::take_over(medium, store, clock, slots, nonce, options).await?;
        tier.finish().await
    })
}

/// Runs `make` with a new journal, which is removed again if that fails.
fn on_new_journal(
    place: &BucketPlace,
    args: &BucketArgs,
    shape: Shape,
    make: impl AsyncFnOnce(FileMedium, S3, Runtime) -> pumice_drive::base::Result<()>,
) -> Result<()> {
    let Some(path) = &args.journal else {
        bail!("{place}: name the local file with --journal FILE");
    };
    check_place(path)?;
    let runtime = Runtime::new(Backend::Auto)?;
    let store = S3::new(place)?;
    runtime.block_on(store.check())?;
    let existed = path.exists();
    let medium = new_journal(&runtime, path, &shape)?;
    let made = runtime.block_on(make(medium, store, runtime.clone()));
    runtime.drop_tasks();
    made.with_context(|| place.to_string()).inspect_err(|_| {
        if !existed {
            // The journal is useless: the bucket has no record of it, or records it as never used.
            let _ = fs::remove_file(path);
        }
    })
}

/// Creates the file of a journal and opens it.
fn new_journal(runtime: &Runtime, path: &Path, shape: &Shape) -> Result<FileMedium> {
    FileMedium::create(path, shape.journal_bytes(), false)?;
    let options = FileOptions::default().with_direct(true);
    Ok(FileMedium::open(runtime.clone(), path, options)?)
}
