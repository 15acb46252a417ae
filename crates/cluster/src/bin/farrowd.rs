//! The daemon as a separate program.

fn main() {
    #[cfg(feature = "failpoints")]
    assert!(farrow_store::failpoints::arm(), "no such failpoint");
    std::process::exit(farrow_cluster::farrowd::main(std::env::args_os().skip(1)));
}
