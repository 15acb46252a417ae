//! Tests of home and readers together, over real mapped memory.

mod kills;
mod model;
mod races;
mod requests;
mod support;
