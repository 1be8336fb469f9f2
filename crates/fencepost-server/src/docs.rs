//! Documentation of every op, from its schema and its doc comments: an OpenAPI document, and a page for people.

mod manual;
pub mod openapi;
pub mod page;
