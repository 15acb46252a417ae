//! C Data Interface.
