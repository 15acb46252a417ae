//! arrow
