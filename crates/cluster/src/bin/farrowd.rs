//! The daemon as a separate program.

fn main() {
    std::process::exit(farrow_cluster::farrowd::main(std::env::args_os().skip(1)));
}
