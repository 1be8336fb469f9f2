//! What every handler has.

use crate::Settings;
use fencepost::Fleet;
use std::sync::Arc;

/// A fleet that is served, and the settings it is served with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

#[derive(Debug)]
pub struct Parts {
    pub fleet: Fleet,
    pub settings: Settings,
}

impl App {
    pub fn new(fleet: Fleet, settings: Settings) -> Self {
        Self(Arc::new(Parts { fleet, settings }))
    }
}

impl std::ops::Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}
