//! The daemon as a program of its own.

fn main() {
    std::process::exit(farrow_cluster::farrowd::main(std::env::args_os().skip(1)));
}
