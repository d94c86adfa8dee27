//! Forks a checkpoint with the library, and shows the plan first.
//!
//! `cargo run --example fork_checkpoint -- SNAPSHOT DESTINATION`, on local disk or any store. Without
//! arguments it forks a savepoint that ships with the repository into a temporary folder.

// An example talks to a person.
#![allow(clippy::print_stdout)]

use forkpoint::fork::{self, ForkRequest};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::store::{Location, Stores};
use forkpoint::{report, verify};

const SAVEPOINT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/checkpoints/1.20.5-savepoint-native/root/savepoints/savepoint-448677-c9c192bf530d"
);

#[tokio::main]
async fn main() -> forkpoint::Result<()> {
    let mut args = std::env::args().skip(1);
    let snapshot = args.next().unwrap_or_else(|| SAVEPOINT.to_string());
    let destination = args.next().unwrap_or_else(|| {
        let folder = std::env::temp_dir().join(format!("forkpoint-example-{}", std::process::id()));
        folder.display().to_string()
    });
    let stores = Stores::from_env();
    let request = ForkRequest::new(Location::parse(&snapshot)?, Location::parse(&destination)?);

    let planned = fork::plan(&stores, &request, &Silent).await?;
    let outlook = fork::look_ahead(&stores, &planned, &Silent).await?;
    println!("{}", report::plan_text(&planned.plan, outlook));

    let done = fork::run(
        &stores,
        &planned,
        &request.execute,
        &Silent,
        &Cancel::default(),
    )
    .await?;
    println!("{}", report::fork_text(&done, false));

    let check = verify::verify(&stores, &done.snapshot, &Silent).await?;
    println!("{}", report::verify_text(&check));
    Ok(())
}
