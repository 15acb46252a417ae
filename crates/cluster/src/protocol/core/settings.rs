//! The settings of a node that can change while it serves: those at its start, and the present ones.

use std::fmt;
use std::sync::Arc;

use farrow_wire::{NodeSettings, Setting, WireError};
use serde::{Deserialize, Serialize};

/// Applies a filter, or says why it cannot be parsed.
type ApplyFilter = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Sets the filter of the process's log.
#[derive(Clone)]
pub struct LogControl(pub Arc<ApplyFilter>);

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogControl")
    }
}

/// The settings with which a node started, and the present ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::protocol) struct SettingsRecord {
    pub(in crate::protocol) started: NodeSettings,
    pub(in crate::protocol) current: NodeSettings,
}

impl SettingsRecord {
    /// What a node that was started with these settings resumes.
    pub(in crate::protocol) fn resumed(self, started: &NodeSettings) -> NodeSettings {
        fn pick<T: PartialEq + Clone>(own: &T, earlier: T, changed: T) -> T {
            if earlier == *own { changed } else { own.clone() }
        }
        let Self { started: earlier, current } = self;
        NodeSettings {
            client_bytes: pick(&started.client_bytes, earlier.client_bytes, current.client_bytes),
            client_objects: pick(
                &started.client_objects,
                earlier.client_objects,
                current.client_objects,
            ),
            cache: pick(&started.cache, earlier.cache, current.cache),
            is_evicting: pick(&started.is_evicting, earlier.is_evicting, current.is_evicting),
            log: pick(&started.log, earlier.log, current.log),
            memory: pick(&started.memory, earlier.memory, current.memory),
        }
    }
}

/// The settings of a node, and how its log is set.
#[derive(Debug, Default)]
pub(in crate::protocol) struct RuntimeSettings {
    record: SettingsRecord,
    log: Option<LogControl>,
}

impl RuntimeSettings {
    /// The changes of an earlier daemon. The region keeps them until
    /// the settings of this one have begun.
    pub(in crate::protocol) fn retained(record: SettingsRecord) -> Self {
        Self { record, log: None }
    }

    /// What the region keeps: nothing, unless something was changed.
    pub(in crate::protocol) fn record(&self) -> Option<&SettingsRecord> {
        Some(&self.record).filter(|record| record.started != record.current)
    }

    /// Notes the settings with which the node starts, of which `current` are in effect.
    pub(in crate::protocol) fn begin(
        &mut self,
        started: NodeSettings,
        current: NodeSettings,
        log: Option<LogControl>,
    ) {
        *self = Self { record: SettingsRecord { started, current }, log };
    }

    /// The settings that are in effect, to note a change.
    pub(in crate::protocol) fn current_mut(&mut self) -> &mut NodeSettings {
        &mut self.record.current
    }

    /// Whether the node can set the filter of its log.
    pub(in crate::protocol) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Notes how much memory the node lends now.
    pub(in crate::protocol) fn note_memory(&mut self, bytes: u64) {
        self.record.current.memory = bytes;
    }

    /// The changes that lead from the present settings to others, the memory left out.
    pub(in crate::protocol) fn changes_to(&self, wanted: &NodeSettings) -> Vec<Setting> {
        let NodeSettings { client_bytes, client_objects, cache, is_evicting, log, .. } = wanted;
        let current = &self.record.current;
        let mut changes = Vec::new();
        if *client_bytes != current.client_bytes {
            changes.push(Setting::ClientBytes(*client_bytes));
        }
        if *client_objects != current.client_objects {
            changes.push(Setting::ClientObjects(*client_objects));
        }
        if *cache != current.cache {
            changes.push(Setting::Cache(*cache));
        }
        if *is_evicting != current.is_evicting {
            changes.push(Setting::IsEvicting(*is_evicting));
        }
        if *log != current.log {
            changes.push(Setting::Log(log.clone()));
        }
        changes
    }

    /// The present settings.
    pub(in crate::protocol) fn current(&self) -> NodeSettings {
        self.record.current.clone()
    }

    /// Names of the settings that differ from those at the start.
    pub(in crate::protocol) fn changed(&self) -> Vec<String> {
        let SettingsRecord { started, current } = &self.record;
        current.changed_from(started)
    }

    /// Sets the filter of the log, if that is the node's own.
    pub(in crate::protocol) fn set_log(&self, filter: &str) -> Result<(), WireError> {
        let Some(LogControl(set)) = &self.log else { return Ok(()) };
        set(filter).map_err(|error| WireError::Invalid(format!("log: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_resumed_unless_the_next_daemon_was_started_with_another_value() {
        let started = NodeSettings { client_bytes: Some(1), cache: Some(2), ..Default::default() };
        let current = NodeSettings {
            client_bytes: None,
            cache: Some(20),
            is_evicting: true,
            ..Default::default()
        };
        let record = SettingsRecord { started: started.clone(), current: current.clone() };
        assert_eq!(record.clone().resumed(&started), current);
        let other = NodeSettings { cache: Some(3), log: "info".to_owned(), ..started };
        let resumed = record.resumed(&other);
        let expected = NodeSettings { cache: Some(3), log: "info".to_owned(), ..current };
        assert_eq!(resumed, expected);
        assert_eq!(resumed.changed_from(&other), ["client_bytes", "is_evicting"]);
    }
}
