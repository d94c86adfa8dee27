//! The command line: one verb per file; data on stdout, talk on stderr.

mod abandon;
#[cfg(all(feature = "blob", unix))]
mod blob;
mod claim;
mod clean;
mod commit;
mod concurrency;
mod duplicate;
pub mod exit;
mod fork;
mod interrupt;
mod lineage;
mod location;
mod lookups;
mod ls;
mod pin;
mod plan;
mod probe;
mod roots;
mod run;
mod show;
mod ui;
mod uploads;
mod usage;
mod verify;
mod why;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::{Parser, Subcommand, ValueEnum};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Options, Stores};

use ui::Ui;

/// Duplicate checkpoints on object stores, independently and proved; say who depends on what, and delete
/// safely.
///
/// Locations are paths or URLs: /path, file:, s3: (s3a:, s3n:, s3p:), gs:, az:, abfs(s):, wasb(s):.
/// Credentials and endpoints come from each provider's usual environment variables (AWS_*, GOOGLE_*,
/// AZURE_*); for MinIO and other S3-compatible servers set AWS_ENDPOINT_URL or give --s3-endpoint.
///
/// Exit codes: 0 done, 1 failed, 2 wrong use, 3 refused by a safety rule, 4 evidence incomplete,
/// 5 damage found, 6 partly done and resumable.
#[derive(Debug, Parser)]
#[command(
    name = "forkpoint",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli<V: Subcommand> {
    #[command(subcommand)]
    verb: V,
    #[command(flatten)]
    global: Global,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of every command")]
struct Global {
    /// What to print on stdout: text for people, or one JSON document. `lineage` and `plan --workers` draw with svg.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Endpoint of an S3-compatible server, such as http://127.0.0.1:9000.
    #[arg(long, global = true, value_name = "URL")]
    s3_endpoint: Option<String>,
    /// Memory for objects that pass through this process on their way between services, in MiB [default: 64].
    #[arg(
        long,
        global = true,
        value_name = "MIB",
        env = crate::store::RELAY_MEMORY_SETTING,
        value_parser = clap::value_parser!(u64).range(8..=1_048_576)
    )]
    relay_memory: Option<u64>,
    /// No progress bar, and no word on what is waited for.
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    /// A picture. Not listed in the help of every verb: only two draw, and their help says so.
    #[value(hide = true)]
    Svg,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Ls(ls::Args),
    Show(show::Args),
    Lineage(lineage::Args),
    Why(why::Args),
    Usage(usage::Args),
    Pin(pin::Args),
    Claim(claim::Args),
    Clean(clean::Args),
    Plan(plan::Args),
    Run(run::Args),
    Commit(commit::Args),
    Abandon(abandon::Args),
    Fork(fork::Args),
    Verify(verify::Args),
    Duplicate(duplicate::Args),
    Probe(probe::Args),
    Uploads(uploads::Args),
    #[cfg(all(feature = "blob", unix))]
    Blob(blob::Args),
}

/// The verb that copies one file, alone: to lay out the options of all others takes as long as a reflink.
#[derive(Debug, Subcommand)]
enum Duplicate {
    Duplicate(duplicate::Args),
}

/// What a verb hands back to be printed, in each format or in the one that is asked for, and the exit code.
struct Output {
    text: String,
    json: Value,
    /// The same as a picture, where there is one.
    svg: Option<String>,
    code: u8,
}

impl Output {
    /// Of a report that may be large: only what is asked for is made.
    fn of(
        format: Format,
        code: u8,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> Output {
        Output::drawn(format, code, text, json, || None)
    }

    /// The same of one that can be drawn.
    fn drawn(
        format: Format,
        code: u8,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
        svg: impl FnOnce() -> Option<String>,
    ) -> Output {
        let mut output = Output {
            text: String::new(),
            json: Value::Null,
            svg: None,
            code,
        };
        match format {
            Format::Text => output.text = text(),
            Format::Json => output.json = json(),
            Format::Svg => output.svg = svg(),
        }
        output
    }
}

/// Runs the command with the arguments of the process and returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match parse(args.into_iter().collect()) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version go to stdout with 0, wrong use to stderr with 2.
            let _ = e.print();
            return if e.use_stderr() {
                exit::USAGE
            } else {
                exit::DONE
            };
        }
    };
    start_log(&cli.verb);
    // For one object more threads cost more than they bring.
    let mut runtime = match &cli.verb {
        Verb::Duplicate(args) if args.is_single() => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = threads(&cli.verb) {
        runtime.worker_threads(threads);
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(&Error::new(ErrorKind::Internal, e.to_string())),
    };
    match runtime.block_on(run(&cli)) {
        Ok(output) => {
            let code = output.code;
            match print(cli.global.format, output) {
                Ok(()) => code,
                Err(e) => fail(&e),
            }
        }
        Err(e) => fail(&e),
    }
}

/// Threads for a verb whose user says how many objects may be under way: for a few of them, threads would
/// mostly wake one another. `None`: one for each processor that this process may use.
fn threads(verb: &Verb) -> Option<usize> {
    const OBJECTS_A_THREAD: usize = 4;
    let objects = match verb {
        Verb::Run(args) => args.concurrency.objects_at_once(),
        Verb::Fork(args) => args.concurrency.objects_at_once(),
        Verb::Duplicate(args) => args.ceiling(),
        _ => None,
    }?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Some(objects.div_ceil(OBJECTS_A_THREAD).clamp(1, processors))
}

/// Reads the arguments. Help, version and wrong use come back as errors to be printed.
fn parse(args: Vec<OsString>) -> std::result::Result<Cli<Verb>, clap::Error> {
    if args.get(1).is_some_and(|verb| verb == "duplicate") {
        let Cli { verb, global } = Cli::<Duplicate>::try_parse_from(args)?;
        let Duplicate::Duplicate(args) = verb;
        return Ok(Cli {
            verb: Verb::Duplicate(args),
            global,
        });
    }
    Cli::try_parse_from(args)
}

async fn run(cli: &Cli<Verb>) -> Result<Output> {
    let draws = match &cli.verb {
        Verb::Plan(args) => args.draws(),
        Verb::Lineage(_) => true,
        _ => false,
    };
    if cli.global.format == Format::Svg && !draws {
        return Err(Error::invalid("there is no picture of this").hint(
            "`forkpoint plan SNAPSHOT DESTINATION --workers N` and `forkpoint lineage ROOT` draw with --format svg",
        ));
    }
    let mut options = Options::from_env();
    if let Some(url) = &cli.global.s3_endpoint {
        options = options.with("AWS_ENDPOINT_URL_S3", url);
    }
    if let Some(mib) = cli.global.relay_memory {
        options = options.with(crate::store::RELAY_MEMORY_SETTING, mib.to_string());
    }
    let stores = match &cli.verb {
        Verb::Duplicate(args) if args.ceiling().is_some() => {
            Stores::with_ceiling(options, args.ceiling().unwrap_or(1))
        }
        _ => Stores::new(options),
    };
    let ui = Ui::new(cli.global.quiet, cli.global.format);
    match &cli.verb {
        Verb::Ls(args) => ls::run(args, &stores, &ui).await,
        Verb::Lineage(args) => lineage::run(args, &stores, &ui).await,
        Verb::Why(args) => why::run(args, &stores, &ui).await,
        Verb::Usage(args) => usage::run(args, &stores, &ui).await,
        Verb::Pin(args) => pin::run(args, &stores).await,
        Verb::Claim(args) => claim::run(args, &stores, &ui).await,
        Verb::Clean(args) => clean::run(args, &stores, &ui).await,
        Verb::Show(args) => show::run(args, &stores, &ui).await,
        Verb::Plan(args) => plan::run(args, &stores, &ui).await,
        Verb::Run(args) => {
            let args = args.clone();
            on_threads(async move { run::run(&args, &stores, &ui).await }).await
        }
        Verb::Commit(args) => commit::run(args, &stores, &ui).await,
        Verb::Abandon(args) => abandon::run(args, &stores, &ui).await,
        Verb::Fork(args) => {
            let args = args.clone();
            on_threads(async move { fork::run(&args, &stores, &ui).await }).await
        }
        Verb::Verify(args) => verify::run(args, &stores, &ui).await,
        Verb::Duplicate(args) if args.is_single() => duplicate::run(args, &stores, &ui).await,
        Verb::Duplicate(args) => {
            let args = args.clone();
            on_threads(async move { duplicate::run_many(&args, &stores, &ui).await }).await
        }
        Verb::Probe(args) => probe::run(args, &stores, &ui).await,
        Verb::Uploads(args) => uploads::run(args, &stores, &ui).await,
        #[cfg(all(feature = "blob", unix))]
        Verb::Blob(args) => blob::run(args, &stores, cli.global.format, &ui).await,
    }
}

/// Runs a verb that copies many objects on the runtime's own threads: the one that waits for them all would be
/// woken for every object that is done.
async fn on_threads(work: impl Future<Output = Result<Output>> + Send + 'static) -> Result<Output> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

fn print(format: Format, output: Output) -> Result<()> {
    let text = match format {
        Format::Text => output.text,
        Format::Json => format!("{:#}\n", output.json),
        Format::Svg => output.svg.unwrap_or_default(),
    };
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // The reader has seen enough, as in `forkpoint show ... | head`.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Error::of_write(e).during("print")),
    }
}

fn fail(error: &Error) -> u8 {
    let mut text = format!("error: {error}\n");
    if let Some(hint) = error.next_step() {
        text.push_str(&format!("  hint: {hint}\n"));
    }
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    exit::code(error)
}

/// Log events go to stderr when RUST_LOG asks for them; warnings of a server always.
fn start_log(verb: &Verb) {
    let default = if is_server(verb) { "warn" } else { "off" };
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = if asked.is_empty() { default } else { &asked };
    if filter != "off" {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .try_init();
    }
}

#[cfg(all(feature = "blob", unix))]
fn is_server(verb: &Verb) -> bool {
    matches!(verb, Verb::Blob(args) if args.is_server())
}

#[cfg(not(all(feature = "blob", unix)))]
fn is_server(_verb: &Verb) -> bool {
    false
}
