//! Drives in a bucket.

mod bucket;
mod bucket_follow;
