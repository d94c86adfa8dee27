//! Runs the tests' fault server for measurements: a double of S3, Google Cloud Storage and Azure
//! that keeps no bytes, with latency, rates and faults as told.
//!
//! ```text
//! cargo run --release --example fault_server -- --port 9100 --latency-ms 20 --cap 500 \
//!     --fill s3:one:data/:100000:1024
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../tests/fault/mod.rs"]
mod fault;

use std::process::ExitCode;

use fault::{ACCESS_KEY, ACCOUNT_KEY, ACCOUNTS, FaultServer, KNOBS, SECRET_KEY, Service, set_knob};

const USAGE: &str = "\
fault_server [--port N] [--NAME VALUE]...

  --port N                  S3 on port N, Google on N+1, Azure on N+2 (default 9100); 0: free ports
  --bucket SERVICE:NAME     makes a bucket; for azure ACCOUNT/CONTAINER
  --fill SERVICE:BUCKET:PREFIX:COUNT:BYTES
                            puts COUNT objects PREFIX00000000... there
  --put SERVICE:BUCKET:KEY:BYTES
                            puts one object there
  --put-parts SERVICE:BUCKET:KEY:BYTES:PART
                            puts one object there, as an upload of parts of PART bytes made it
  --log                     keeps every request in memory, not only counters

Knobs, as --NAME VALUE here and as /_fault/set?NAME=VALUE on any port while it runs;
/_fault/counters shows the counters, /_fault/requests what --log keeps, /_fault/reset sets
both to nothing:
";

fn service(name: &str) -> Result<Service, String> {
    let found = Service::ALL.into_iter().find(|s| s.as_str() == name);
    found.ok_or_else(|| format!("{name} is none of s3, gcs, azure"))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn turn(server: &FaultServer, name: &str, value: &str) -> Result<(), String> {
    let parts: Vec<&str> = value.split(':').collect();
    match (name, &parts[..]) {
        ("bucket", [of, bucket]) => server.create_bucket(service(of)?, bucket),
        ("fill", [of, bucket, prefix, count, len]) => {
            server.fill(service(of)?, bucket, prefix, number(count)?, number(len)?);
        }
        ("put", [of, bucket, key, len]) => {
            server.put_seed(service(of)?, bucket, key, 1, number(len)?);
        }
        ("put-parts", [of, bucket, key, len, part]) => {
            let content = fault::Content::of_seed(1, number(len)?);
            let (of, part) = (service(of)?, number(part)?);
            server.put_in_parts(of, bucket, key, content, part, fault::Meta::default());
        }
        _ => set_knob(&mut server.faults(), name, value)?,
    }
    Ok(())
}

async fn run(arguments: &[String]) -> Result<(), String> {
    let mut named: Vec<(&str, &str)> = Vec::new();
    let (mut port, mut log) = (9100, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let name = argument
            .strip_prefix("--")
            .ok_or_else(|| format!("{argument} is no option"))?;
        if name == "log" {
            log = true;
            continue;
        }
        let value = arguments
            .next()
            .ok_or_else(|| format!("--{name} wants a value"))?;
        match name {
            "port" => port = value.parse().map_err(|_| format!("{value} is no port"))?,
            _ => named.push((name, value)),
        }
    }
    let ports = match port {
        0 => [0; 3],
        _ => [port, port + 1, port + 2],
    };
    let server = FaultServer::start_on(ports)
        .await
        .map_err(|e| format!("cannot listen on ports {ports:?}: {e}"))?;
    server.log().keep(log);
    for (name, value) in named {
        turn(&server, name, value)?;
    }
    for of in Service::ALL {
        println!("{} {}", of.as_str(), server.url(of));
    }
    println!("access key {ACCESS_KEY}, secret {SECRET_KEY}");
    println!("accounts {}, key {ACCOUNT_KEY}", ACCOUNTS.join(" "));
    let _ = tokio::signal::ctrl_c().await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "--help") {
        println!("{USAGE}\n{KNOBS}");
        return ExitCode::SUCCESS;
    }
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
