//! `forkpoint blob get`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blob::client::BlobClient;
use crate::blob::{
    BlobCache, BlobKey, BlobSource, CacheConfig, ClusterId, HaSource, JobId, LocalOptions, OnExit,
    ServerSource, SourceUse, apart, check_name, fetch_file, give_name, outside_of_stores,
    read_range,
};
use crate::error::{Error, ErrorKind, Result};
use crate::report::{blob_get_json, blob_get_text};
use crate::store::Stores;

use super::super::ui::Ui;
use super::super::{Format, Output, exit, interrupt, location};
use super::named::Named;
use super::place::directory;
use super::remote::{self, Remote};

/// Download a blob into a file, verified; or a range of it, which cannot be verified.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job that it belongs to.
    job: String,
    /// The digest that `put` printed, or at least the first 8 digits of it, in lower case.
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
    #[arg(long, value_name = "DIR", value_parser = directory)]
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

pub(in crate::cli) async fn run(
    args: &Args,
    stores: &Stores,
    format: Format,
    ui: &Ui,
) -> Result<Output> {
    let (job, named) = (JobId::parse(&args.job)?, Named::parse(&args.digest)?);
    let stdout = args.out == Path::new("-");
    if stdout && format == Format::Json {
        return Err(
            Error::invalid("the bytes and a JSON document cannot both go to stdout")
                .hint("name a file"),
        );
    }
    let work = async {
        let client = args.remote.client(ui)?;
        let key = named.find(&client, &job).await?;
        write(args, stores, ui, client, &key)
            .await
            .map_err(next_step)
    };
    let done = tokio::select! {
        done = work => done,
        // What was begun has no name yet, and goes.
        () = interrupt::asked_to_stop_once() => {
            Err(Error::new(ErrorKind::Cancelled, "stopped on request; nothing was written"))
        }
    };
    done
}

async fn write(
    args: &Args,
    stores: &Stores,
    ui: &Ui,
    client: BlobClient,
    key: &BlobKey,
) -> Result<Output> {
    let stdout = args.out == Path::new("-");
    let server = ServerSource::new(client);
    if let Some(text) = &args.range {
        let range = remote::range(text, key.digest.size)?;
        let mut out = Out::begin(&args.out, args.overwrite)?;
        read_range(&server, key, range, |bytes| out.write(&bytes)).await?;
        out.finish()?;
        return Ok(done(key, &args.out, stdout, false, &[]));
    }
    if let Some(directory) = &args.cache {
        outside_of_stores(directory).await?;
    }
    let mut sources: Vec<Arc<dyn BlobSource>> = Vec::new();
    if let Some(url) = &args.ha {
        let url = location::parse(url)?;
        if let Some(directory) = &args.cache {
            apart(stores, &url, directory).await?;
        }
        let ha = HaSource::new(stores.clone(), &url, &args.cluster)?;
        sources.push(Arc::new(ha.telling(remote::on_wait(ui))));
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
            let mut out = Out::begin(&args.out, args.overwrite)?;
            let mut local = LocalOptions::new(directory);
            local.on_exit = OnExit::Keep;
            let cache = BlobCache::open(CacheConfig::new(local), sources).await?;
            let guard = cache.attach(&key.job);
            let handle = guard.get(&key.digest).await?;
            let mut pieces = handle.stream(None)?;
            while let Some(piece) = futures::StreamExt::next(&mut pieces).await {
                out.write(&piece?)?;
            }
            out.finish()?;
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

/// What this command can do about it.
fn next_step(error: Error) -> Error {
    match error.kind() {
        ErrorKind::AlreadyExists => error.hint("name another, or replace it with --overwrite"),
        _ => error,
    }
}

fn written(path: &Path, e: &std::io::Error) -> Error {
    Error::of_full(e)
        .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, e.to_string()))
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
        replace: bool,
    },
}

impl Out {
    fn begin(path: &Path, replace: bool) -> Result<Out> {
        if path == Path::new("-") {
            return Ok(Out::Stdout);
        }
        check_name(path, replace)?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{:016x}.part", crate::clock::random_id()));
        let temporary = PathBuf::from(temporary);
        let made = std::fs::File::create_new(&temporary);
        Ok(Out::File {
            file: made.map_err(|e| written(path, &e))?,
            temporary,
            path: path.to_path_buf(),
            replace,
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

    fn finish(self) -> Result<()> {
        match &self {
            Out::Stdout => {
                let flushed = std::io::stdout().lock().flush();
                flushed.map_err(|e| written(Path::new("stdout"), &e))
            }
            Out::File {
                temporary,
                path,
                replace,
                ..
            } => give_name(temporary, path, *replace),
        }
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
