//! The daemon of the tests: `farrowd` with places where `FARROW_FAILPOINT` ends it.

fn main() {
    assert!(farrow_store::failpoints::arm(), "no such failpoint");
    std::process::exit(farrow_cluster::farrowd::main(std::env::args_os().skip(1)));
}
