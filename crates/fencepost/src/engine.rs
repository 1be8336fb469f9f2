pub(crate) mod fleet;
pub mod op;
pub(crate) mod prelude;
pub(crate) mod unbroken;
pub(crate) mod wait;
