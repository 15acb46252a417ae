//! `farrow-bench-fabric compare`: objects fetched by `farrow-net` from another process, compared
//! with raw TCP of the same shape (the same connections, request size and pages), alternately in
//! each round. Prints medians and ratios, and all samples as JSON with `--json FILE`.
//!
//! CPU is that of each process, in seconds for a GiB. `committed` pages exist before the clock
//! starts; `fresh` ones do not.

#![forbid(unsafe_code)]

mod home;
mod measure;
mod raw;
mod reader;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Any error ends the run.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(about = "The network fabric beside raw TCP of the same shape.")]
struct FabricArguments {
    #[command(subcommand)]
    command: FabricCommand,
}

#[derive(Subcommand)]
enum FabricCommand {
    /// Measures.
    Compare(FabricComparison),
    /// The serving process, for `compare`.
    Home {
        /// Bytes of the table.
        bytes: u64,
        /// `TCP_CONGESTION`.
        congestion: String,
    },
}

#[derive(clap::Args)]
struct FabricComparison {
    /// Rounds; each has every way once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes of the table.
    #[arg(long, default_value_t = 1 << 30)]
    bytes: u64,
    /// Connections for bulk.
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// `TCP_CONGESTION`.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Small requests in a round.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Output file for all samples.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<(), AnyError> {
    match FabricArguments::parse().command {
        FabricCommand::Compare(compare) => measure::run(&compare),
        FabricCommand::Home { bytes, congestion } => home::run(bytes, &congestion),
    }
}
