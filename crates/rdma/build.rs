//! Builds the part in C, which needs the headers of libibverbs.

fn main() {
    println!("cargo:rerun-if-changed=src/verbs.c");
    #[cfg(feature = "verbs")]
    {
        let mut build = cc::Build::new();
        build.file("src/verbs.c").warnings(true).compile("farrow_verbs");
        println!("cargo:rustc-link-lib=ibverbs");
    }
}
