//! farrow
