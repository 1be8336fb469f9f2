//! Values and rows of both databases.

use crate::{
    clock::{Millis, Time},
    error::{Error, Result},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

impl Value {
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Int(v.into())
    }
}
impl From<Time> for Value {
    fn from(v: Time) -> Self {
        Value::Int(v.0)
    }
}
impl From<Millis> for Value {
    fn from(v: Millis) -> Self {
        Value::Int(v.0)
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Text(v.into())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Text(v)
    }
}
impl From<&String> for Value {
    fn from(v: &String) -> Self {
        Value::Text(v.clone())
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Value::Null, Into::into)
    }
}

/// One row; its columns are read by name.
#[derive(Debug)]
pub struct Row {
    columns: Arc<[Box<str>]>,
    values: Vec<Value>,
    /// The column after the last one read. Most rows are read in order, so the search mostly starts at its target.
    next: AtomicUsize,
}

impl Row {
    pub(crate) fn new(columns: Arc<[Box<str>]>, values: Vec<Value>) -> Self {
        Self { columns, values, next: AtomicUsize::new(0) }
    }
    pub fn get<T: FromValue>(&self, column: &str) -> Result<T> {
        let at = self.position(column)?;
        read(column, self.values[at].clone())
    }

    /// The same as [`Self::get`], but moves a text out instead of copying it.
    pub fn take<T: FromValue>(&mut self, column: &str) -> Result<T> {
        let at = self.position(column)?;
        let value = match &mut self.values[at] {
            Value::Text(text) => Value::Text(std::mem::take(text)),
            other => other.clone(),
        };
        read(column, value)
    }

    pub(crate) fn values(&self) -> &[Value] {
        &self.values
    }

    fn position(&self, column: &str) -> Result<usize> {
        let next = self.next.load(Ordering::Relaxed);
        let at = (next..self.columns.len())
            .chain(0..next.min(self.columns.len()))
            .find(|&at| *self.columns[at] == *column)
            .ok_or_else(|| Error::internal(format!("the statement has no column `{column}`")))?;
        self.next.store(at + 1, Ordering::Relaxed);
        Ok(at)
    }
}

fn read<T: FromValue>(column: &str, value: Value) -> Result<T> {
    T::from_value(value).map_err(|value| Error::internal(format!("column `{column}` holds {value:?}")))
}

/// A type that a column can be read as. A value that does not fit is returned as the error.
pub trait FromValue: Sized {
    fn from_value(value: Value) -> Result<Self, Value>;
}
impl FromValue for i64 {
    fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Int(v) => Ok(v),
            other => Err(other),
        }
    }
}
impl FromValue for bool {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(|v| v != 0)
    }
}
impl FromValue for Time {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(Time)
    }
}
impl FromValue for Millis {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(Millis)
    }
}
impl FromValue for String {
    fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Text(v) => Ok(v),
            other => Err(other),
        }
    }
}
impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Null => Ok(None),
            other => T::from_value(other).map(Some),
        }
    }
}
