//! `forkpoint blob get`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blob::{
    BlobCache, BlobKey, BlobSource, CacheConfig, ClusterId, Digest, HaSource, JobId, LocalOptions,
    OnExit, ServerSource, SourceUse, fetch_file, read_range, replaceable,
};
use crate::error::{Error, ErrorKind, Result};
use crate::report::{blob_get_json, blob_get_text};
use crate::store::Stores;

use super::super::{Format, Output, exit, interrupt, location};
use super::remote::{self, Remote};

/// Download a blob into a file, verified; or a range of it, which cannot be verified.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job that it belongs to.
    job: String,
    /// The digest that `put` printed: SHA-256, `-`, size.
    digest: String,
    /// The file to write, which must not be there; `-` for stdout.
    out: PathBuf,
    /// Replace the file if it is there.
    #[arg(long)]
    overwrite: bool,
    /// Bytes FIRST-LAST, FIRST- or -COUNT only, from the server.
    #[arg(long, allow_hyphen_values = true, conflicts_with_all = ["cache", "ha"])]
    range: Option<String>,
    /// Through a cache in this directory: what is there and verified is not downloaded.
    #[arg(long, value_name = "DIRECTORY")]
    cache: Option<PathBuf>,
    /// Ask the HA store at this location first.
    #[arg(long, value_name = "URL")]
    ha: Option<String>,
    /// The cluster id below it.
    #[arg(long, value_name = "ID", requires = "ha", default_value = "default")]
    cluster: ClusterId,
    #[command(flatten)]
    remote: Remote,
}

pub(in crate::cli) async fn run(args: &Args, stores: &Stores, format: Format) -> Result<Output> {
    let key = BlobKey {
        job: JobId::parse(&args.job)?,
        digest: Digest::parse(&args.digest)?,
    };
    let stdout = args.out == Path::new("-");
    if stdout && format == Format::Json {
        return Err(
            Error::invalid("the bytes and a JSON document cannot both go to stdout")
                .hint("name a file"),
        );
    }
    if !stdout {
        replaceable(&args.out)?;
        if !args.overwrite && args.out.exists() {
            return Err(exists(&args.out));
        }
    }
    let done = tokio::select! {
        done = write(args, stores, &key, stdout) => done,
        // What was begun has no name yet, and goes.
        () = interrupt::asked_to_stop_once() => {
            Err(Error::new(ErrorKind::Cancelled, "stopped on request; nothing was written"))
        }
    };
    done
}

async fn write(args: &Args, stores: &Stores, key: &BlobKey, stdout: bool) -> Result<Output> {
    let server = ServerSource::new(args.remote.client()?);
    if let Some(text) = &args.range {
        let range = remote::range(text, key.digest.size)?;
        let mut out = Out::begin(&args.out)?;
        read_range(&server, key, range, |bytes| out.write(&bytes)).await?;
        out.finish(args.overwrite)?;
        return Ok(done(key, &args.out, stdout, false, &[]));
    }
    let mut sources: Vec<Arc<dyn BlobSource>> = Vec::new();
    if let Some(url) = &args.ha {
        sources.push(Arc::new(HaSource::new(
            stores.clone(),
            &location::parse(url)?,
            &args.cluster,
        )?));
    }
    sources.push(Arc::new(server));
    let used = match &args.cache {
        None if !stdout => fetch_file(sources, key, &args.out, args.overwrite).await?,
        None => {
            // Not a byte goes out before all have been compared.
            let folder = std::env::temp_dir();
            let file = folder.join(format!("forkpoint-{:016x}", crate::clock::random_id()));
            let used = fetch_file(sources, key, &file, false).await?;
            let copied = copy_out(&file);
            let _ = std::fs::remove_file(&file);
            copied?;
            used
        }
        Some(directory) => {
            let mut local = LocalOptions::new(directory);
            local.on_exit = OnExit::Keep;
            let cache = BlobCache::open(CacheConfig::new(local), sources).await?;
            let guard = cache.attach(&key.job);
            let handle = guard.get(&key.digest).await?;
            let mut out = Out::begin(&args.out)?;
            let mut pieces = handle.stream(None)?;
            while let Some(piece) = futures::StreamExt::next(&mut pieces).await {
                out.write(&piece?)?;
            }
            out.finish(args.overwrite)?;
            let used = cache.stats().sources;
            drop((handle, guard, pieces));
            cache.close().await?;
            used
        }
    };
    Ok(done(key, &args.out, stdout, true, &used))
}

fn done(key: &BlobKey, out: &Path, stdout: bool, verified: bool, used: &[SourceUse]) -> Output {
    let file = out.display().to_string();
    let text = match (stdout, verified) {
        (true, _) => String::new(),
        (false, true) => blob_get_text(&key.digest, &file, used),
        (false, false) => format!("{file}: a range, which cannot be verified\n"),
    };
    Output {
        text,
        json: blob_get_json(&key.job, &key.digest, &file, verified, used),
        svg: None,
        code: exit::DONE,
    }
}

fn exists(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "a file is already there")
        .during("write")
        .at(path.display())
        .hint("name another, or replace it with --overwrite")
}

fn written(path: &Path, e: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, e.to_string())
        .during("write")
        .at(path.display())
}

/// Stdout, or a file that has its name only once it is complete.
enum Out {
    Stdout,
    File {
        file: std::fs::File,
        temporary: PathBuf,
        path: PathBuf,
    },
}

impl Out {
    fn begin(path: &Path) -> Result<Out> {
        if path == Path::new("-") {
            return Ok(Out::Stdout);
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{:016x}.part", crate::clock::random_id()));
        let temporary = PathBuf::from(temporary);
        let made = std::fs::File::create_new(&temporary);
        Ok(Out::File {
            file: made.map_err(|e| written(path, &e))?,
            temporary,
            path: path.to_path_buf(),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let done = match self {
            Out::Stdout => std::io::stdout().lock().write_all(bytes),
            Out::File { file, .. } => file.write_all(bytes),
        };
        done.map_err(|e| match self {
            Out::Stdout => written(Path::new("stdout"), &e),
            Out::File { path, .. } => written(path, &e),
        })
    }

    fn finish(self, replace: bool) -> Result<()> {
        let Out::File {
            temporary, path, ..
        } = &self
        else {
            let flushed = std::io::stdout().lock().flush();
            return flushed.map_err(|e| written(Path::new("stdout"), &e));
        };
        let named = match replace {
            true => std::fs::rename(temporary, path),
            false => std::fs::hard_link(temporary, path),
        };
        named.map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => exists(path),
            _ => written(path, &e),
        })
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Out::File { temporary, .. } = self {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

fn copy_out(file: &Path) -> Result<()> {
    let fail = |e: std::io::Error| written(Path::new("stdout"), &e);
    let mut from = std::fs::File::open(file).map_err(fail)?;
    let mut to = std::io::stdout().lock();
    std::io::copy(&mut from, &mut to).map_err(fail)?;
    to.flush().map_err(fail)
}
