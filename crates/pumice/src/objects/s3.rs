//! An S3-compatible store. Its client works on a thread of its own, with a runtime of its own: the
//! thread of a drive sends it requests and waits for the answers.
//!
//! No request is retried here: the drive does that, because it knows which ones may be repeated.

use std::ffi::OsString;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use async_channel::{Receiver, Sender, bounded};
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    Certificate, ClientOptions, HeaderValue, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig,
};

use super::BucketPlace;
use super::answers::meaning;
use super::settings::Settings;
use crate::signals;
use pumice_drive::base::{self, AlignedBuffer, Error, ErrorKind};
use pumice_drive::media::tier::{Listed, Store};

/// Maximum number of requests that wait for the thread: more than a drive has in progress.
const WAITING_MAX: usize = 64;

/// Timeout for a connection to a store, after which the request is retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum duration of a request: the largest object (8 MiB) at 1 Mbit/s. A request that hangs is
/// repeated.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum length of an object that is read as a whole: a commit that names the chunks of
/// petabytes.
const OBJECT_BYTES_MAX: u64 = 256 << 20;

/// A request, ready to run.
type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The part of a bucket that contains a drive.
pub(crate) struct S3 {
    client: Arc<AmazonS3>,
    place: BucketPlace,
    jobs: Sender<Job>,
}

impl S3 {
    /// Prepares access to a bucket, configured by environment and profile; sends nothing yet.
    ///
    /// # Errors
    /// The settings are incomplete or cannot be read; a thread cannot be started.
    pub(crate) fn new(place: &BucketPlace) -> base::Result<Self> {
        let builder = configured(&Settings::read()?, place)?;
        let unusable = |error: object_store::Error| {
            Error::new(ErrorKind::InvalidInput, format!("cannot use {place}")).caused_by(error)
        };
        let client = builder.build().map_err(unusable)?;
        let (jobs, receiver) = bounded(WAITING_MAX);
        let start = || thread::Builder::new().name("objects".into()).spawn(|| work(receiver));
        let no_thread = |error: String| {
            Error::new(ErrorKind::Io, format!("cannot start a thread for {place}: {error}"))
        };
        let started = signals::blocked(start).map_err(|error| no_thread(format!("{error:#}")))?;
        started.map_err(|error| no_thread(error.to_string()))?;
        Ok(Self { client: Arc::new(client), place: place.clone(), jobs })
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.place.name))
    }

    /// Runs a request on the thread of the client.
    async fn ask<T: Send + 'static, F>(
        &self,
        request: impl FnOnce(Arc<AmazonS3>) -> F,
    ) -> base::Result<Result<T, object_store::Error>>
    where
        F: Future<Output = Result<T, object_store::Error>> + Send + 'static,
    {
        let (answer, answered) = bounded(1);
        let request = request(self.client.clone());
        let job = Box::pin(async move {
            // The drive may no longer be waiting.
            let _ = answer.send(request.await).await;
        });
        let ended = || Error::new(ErrorKind::Io, "the thread of the object store has ended");
        self.jobs.send(job).await.map_err(|_| ended())?;
        answered.recv().await.map_err(|_| ended())
    }

    fn failed(&self, doing: &str, error: object_store::Error) -> Error {
        let (kind, why) = match meaning(&error) {
            (ErrorKind::Io, _) if !has_credentials() => {
                let what = "there are no credentials: set AWS_ACCESS_KEY_ID and \
                            AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
                (ErrorKind::Io, what.to_owned())
            }
            meaning => meaning,
        };
        Error::new(kind, format!("cannot {doing} {}: {why}", self.place))
    }
}

/// Returns the configuration of a client, which does not retry.
fn configured(settings: &Settings, place: &BucketPlace) -> base::Result<AmazonS3Builder> {
    let mut client = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT)
        .with_user_agent(HeaderValue::from_static("pumice"));
    if let Some(path) = &settings.ca_bundle {
        let unusable = |error: String| {
            let what = format!("cannot read certificates of {}: {error}", path.display());
            Error::new(ErrorKind::InvalidInput, what)
        };
        let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let found =
            Certificate::from_pem_bundle(&pem).map_err(|error| unusable(error.to_string()))?;
        client = found.into_iter().fold(client, ClientOptions::with_root_certificate);
    }
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let mut builder = of_environment(settings, std::env::vars_os());
    if let Some(endpoint) = &settings.endpoint {
        client = client.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &settings.region {
        builder = builder.with_region(region);
    }
    let builder = builder.with_client_options(client).with_retry(once);
    Ok(builder.with_bucket_name(&place.bucket))
}

/// Returns the configuration of a client from the environment, except for key, secret and token,
/// which belong together: the settings contain all three from one source.
fn of_environment(
    settings: &Settings,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> AmazonS3Builder {
    let credentials = [
        (AmazonS3ConfigKey::AccessKeyId, &settings.key),
        (AmazonS3ConfigKey::SecretAccessKey, &settings.secret),
        (AmazonS3ConfigKey::Token, &settings.token),
    ];
    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let key = name.starts_with("AWS_").then(|| name.to_ascii_lowercase().parse());
        let Some(Ok(key)) = key else { continue };
        if credentials.iter().all(|(credential, _)| *credential != key) {
            builder = builder.with_config(key, value);
        }
    }
    let known = credentials.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    known.fold(builder, |builder, (key, value)| builder.with_config(key, value))
}

/// Whether the environment has credentials; if not, the client requests them from the machine.
fn has_credentials() -> bool {
    if Settings::read().is_ok_and(|settings| settings.key.is_some()) {
        return true;
    }
    let names = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    names.iter().any(|name| std::env::var_os(name).is_some())
}

/// Runs requests until the store is dropped.
fn work(jobs: Receiver<Job>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(async move {
            while let Ok(job) = jobs.recv().await {
                tokio::spawn(job);
            }
        }),
        Err(error) => tracing::error!(%error, "cannot start the runtime of the object store"),
    }
}

impl Store for S3 {
    async fn put(&self, name: &str, bytes: Arc<AlignedBuffer>) -> base::Result<()> {
        let path = self.path(name);
        // Copied on that thread: a drive that copies megabytes serves no requests meanwhile.
        let put = |client: Arc<AmazonS3>| async move {
            client.put(&path, PutPayload::from(bytes.to_vec())).await
        };
        self.ask(put).await?.map(|_| ()).map_err(|error| self.failed("write to", error))
    }

    async fn put_if_absent(&self, name: &str, bytes: Arc<AlignedBuffer>) -> base::Result<bool> {
        let path = self.path(name);
        let payload = PutPayload::from(bytes.to_vec());
        let options = PutOptions::from(PutMode::Create);
        let put =
            |client: Arc<AmazonS3>| async move { client.put_opts(&path, payload, options).await };
        match self.ask(put).await? {
            Ok(_) => Ok(true),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => Ok(false),
            Err(error) => Err(self.failed("write to", error)),
        }
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> base::Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let get = |client: Arc<AmazonS3>| async move {
            let bytes = match range {
                Some(range) => client.get_range(&path, range).await?,
                None => {
                    let found = client.get(&path).await?;
                    let bytes = found.meta.size;
                    if bytes > OBJECT_BYTES_MAX {
                        let source = format!("an object of {bytes} bytes is too large").into();
                        return Err(object_store::Error::Generic { store: "S3", source });
                    }
                    found.bytes().await?
                }
            };
            Ok(bytes.to_vec())
        };
        match self.ask(get).await? {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("read from", error)),
        }
    }

    async fn exists(&self, name: &str) -> base::Result<bool> {
        let path = self.path(name);
        let head = |client: Arc<AmazonS3>| async move { client.head(&path).await };
        match self.ask(head).await? {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(self.failed("read from", error)),
        }
    }

    async fn list(&self, prefix: &str) -> base::Result<Vec<Listed>> {
        let path = self.path(prefix.trim_end_matches('/'));
        let list = |client: Arc<AmazonS3>| async move {
            client.list(Some(&path)).try_collect::<Vec<_>>().await
        };
        let listed = self.ask(list).await?.map_err(|error| self.failed("list", error))?;
        let start = self.place.name.len() + 1;
        let named = |object: object_store::ObjectMeta| {
            let name = object.location.as_ref().get(start..)?.to_owned();
            Some(Listed { name, bytes: object.size })
        };
        Ok(listed.into_iter().filter_map(named).collect())
    }

    async fn delete(&self, name: &str) -> base::Result<()> {
        let path = self.path(name);
        let delete = |client: Arc<AmazonS3>| async move { client.delete(&path).await };
        match self.ask(delete).await? {
            Err(error) if !is_absent(&error) => Err(self.failed("delete from", error)),
            _ => Ok(()),
        }
    }
}

/// Whether an object does not exist, although its bucket does.
fn is_absent(error: &object_store::Error) -> bool {
    let is_of_bucket = || base::chain(error).contains("NoSuchBucket");
    matches!(error, object_store::Error::NotFound { .. }) && !is_of_bucket()
}

impl S3 {
    /// Verifies that the bucket exists and can be listed.
    ///
    /// # Errors
    /// One line that names the missing bucket or permission.
    pub(crate) async fn check(&self) -> base::Result<()> {
        let path = self.path("claims");
        let list = |client: Arc<AmazonS3>| async move {
            let mut listed = client.list(Some(&path));
            listed.try_next().await.map(|_| ())
        };
        let listed = self.ask(list).await?;
        listed.map_err(|error| self.failed("reach", error))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: credentials come from one source. Method: an environment and settings of a profile, as
    //! the client gets them.
    use super::*;

    #[test]
    fn a_token_of_the_environment_is_not_used_with_keys_of_a_profile() {
        let profile = Settings {
            key: Some("profile".into()),
            secret: Some("secret".into()),
            ..Settings::default()
        };
        let environment = [
            ("AWS_SESSION_TOKEN", "other"),
            ("AWS_SECRET_ACCESS_KEY", "other"),
            ("AWS_ROLE_ARN", "role"),
            ("PATH", "/bin"),
        ];
        let variables = environment.map(|(name, value)| (name.into(), value.into()));
        let builder = of_environment(&profile, variables);
        let value = |key| builder.get_config_value(&key);
        assert_eq!(value(AmazonS3ConfigKey::AccessKeyId).as_deref(), Some("profile"));
        assert_eq!(value(AmazonS3ConfigKey::SecretAccessKey).as_deref(), Some("secret"));
        assert_eq!(value(AmazonS3ConfigKey::Token), None);
        assert_eq!(value(AmazonS3ConfigKey::RoleArn).as_deref(), Some("role"));
    }
}
