//! Tests of home and readers together, over real mapped memory.

mod requests;
mod support;
