//! Settings that are changed while the node serves.
//!
//! A change lasts until the daemon ends in order. The region keeps it, with the value that it
//! replaced, so that a daemon that follows after a kill or an upgrade resumes it, unless that one
//! was started with another value.

use farrow_memory::Length;
use farrow_store::{ByHand, EvictionPolicy, Lru};
use farrow_wire::{LOG_FILTER_BYTES_MAX, NodeSettings, ReplyBody, Setting, WireError};

use crate::protocol::action::{Action, answer_to};
use crate::protocol::context::ReplyTo;
use crate::protocol::convert::store_error;
use crate::protocol::core::cluster_record::retained_settings;
use crate::protocol::core::quota::Quotas;
use crate::protocol::core::resize::{Preparation, ResizeContext, ResizeEnd, whole_pages};
use crate::protocol::core::settings::LogControl;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Notes the settings with which the node starts, which are in effect; a memory of 0: that of
    /// the region. A node that follows an earlier daemon resumes the changes of that one.
    ///
    /// # Errors
    ///
    /// The region cannot be read or written.
    pub fn begin_settings(
        &mut self,
        mut started: NodeSettings,
        log: Option<LogControl>,
        is_following: bool,
    ) -> Result<(), WireError> {
        let earlier = retained_settings(&self.home).map_err(store_error)?;
        let had_changes = earlier.is_some();
        let capacity = self.home.capacity().0;
        started.memory = match (started.memory, &earlier) {
            (0, Some(earlier)) if is_following => earlier.started.memory,
            (0, _) => capacity,
            (bytes, _) => whole_pages(&self.home, bytes),
        };
        let current = match earlier.filter(|_| is_following) {
            Some(earlier) => earlier.resumed(&started),
            None => started.clone(),
        };
        let memory = current.memory;
        let in_effect = NodeSettings { memory: capacity, ..started.clone() };
        let at_start = started.clone();
        self.settings.begin(started, in_effect, log);
        self.resume_memory(memory, is_following);
        let mut changes = self.settings.changes_to(&current);
        // A filter of another version is no reason not to start.
        changes.retain(|change| match self.check_setting(change) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a changed setting of the earlier daemon is not resumed");
                false
            }
        });
        if !changes.is_empty() {
            let changed = current.changed_from(&at_start).join(", ");
            tracing::warn!(changed, "settings differ from the options, as set while it served");
        }
        for change in changes {
            if let Err(error) = self.apply_setting(change) {
                tracing::warn!(%error, "a changed setting of the earlier daemon is not resumed");
            }
        }
        if had_changes { self.keep_settings() } else { Ok(()) }
    }

    /// Goes on to the memory of the options, or of the earlier daemon, if that can be. A node that
    /// is restarted evicts nothing for it.
    fn resume_memory(&mut self, bytes: u64, is_following: bool) {
        let less = self.home.capacity().0.saturating_sub(whole_pages(&self.home, bytes));
        if !is_following && self.home.free_page_bytes().0 < less {
            let capacity_bytes = self.home.capacity().0;
            tracing::warn!(
                bytes,
                capacity_bytes,
                "the node lends more than its limit: it has objects"
            );
            return;
        }
        match self.resize.check(&mut self.home, &self.residency, bytes) {
            Ok(()) => {
                self.resize.begin(&self.home, bytes, None);
            }
            Err(error) => {
                let capacity_bytes = self.home.capacity().0;
                tracing::warn!(%error, capacity_bytes, "the node lends what the earlier daemon lent");
            }
        }
    }

    /// Sets the thread that touches pages ahead.
    pub(crate) fn set_preparation(&mut self, preparation: Preparation) {
        self.resize.set_preparation(preparation);
    }

    /// Does one piece of a change of the memory, if it is time.
    pub(in crate::protocol) fn tick_resize(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Self { home, residency, replicas, resize, .. } = self;
        let context = ResizeContext { home, residency, replicas };
        let Some(ResizeEnd { waiters, result }) = resize.tick(context, now_ms) else { return };
        self.settings.note_memory(self.home.capacity().0);
        let stored = self.keep_settings();
        let reply = result.and(stored).map(|()| ReplyBody::Done);
        if let Some(cluster) = &mut self.cluster.0 {
            cluster.has_news = true;
        }
        self.notify_members();
        self.admission.look_again();
        let answers = waiters.into_iter();
        out.extend(answers.map(|to| answer_to(to.session, to.seq, reply.clone())));
    }

    /// Changes settings: all, or none if one of them is refused. `None`: the memory changes, and
    /// the answer follows later.
    pub(in crate::protocol) fn set(
        &mut self,
        waiter: ReplyTo,
        settings: Vec<Setting>,
    ) -> Result<Option<ReplyBody>, WireError> {
        for setting in &settings {
            self.check_setting(setting)?;
        }
        // The only one that can fail afterwards: its syntax is known to the log alone.
        for setting in &settings {
            if let Setting::Log(filter) = setting {
                self.settings.set_log(filter)?;
            }
        }
        let mut memory = None;
        for setting in settings {
            tracing::info!(?setting, "a setting is changed");
            match setting {
                Setting::Memory(bytes) => memory = Some(bytes),
                setting => self.apply_setting(setting)?,
            }
        }
        self.keep_settings()?;
        // Requests that wait may fit now, or are refused.
        self.admission.look_again();
        self.quota.reservations.look_again();
        let is_done = memory.is_none_or(|bytes| self.resize.begin(&self.home, bytes, Some(waiter)));
        Ok(is_done.then_some(ReplyBody::Done))
    }

    fn check_setting(&mut self, setting: &Setting) -> Result<(), WireError> {
        let invalid = |reason: String| Err(WireError::Invalid(reason));
        match setting {
            Setting::ClientBytes(_) | Setting::ClientObjects(_) => Ok(()),
            Setting::Memory(bytes) => self.resize.check(&mut self.home, &self.residency, *bytes),
            Setting::Cache(_) if self.replicas.kind().is_none() => {
                invalid("cache: this node reads no objects over the network".to_owned())
            }
            Setting::Cache(Some(0)) => {
                invalid("cache: 0 B leave no object readable over the network".to_owned())
            }
            Setting::Cache(_) => Ok(()),
            Setting::IsEvicting(_) if self.residency.policy_name() == "spill" => {
                invalid("evict: this node spills objects instead (--spill)".to_owned())
            }
            Setting::IsEvicting(_) => Ok(()),
            Setting::Log(_) if !self.settings.has_log() => {
                invalid("log: the log of this process is not the node's own".to_owned())
            }
            Setting::Log(filter) if filter.len() > LOG_FILTER_BYTES_MAX => {
                let (bytes, max) = (filter.len(), LOG_FILTER_BYTES_MAX);
                invalid(format!("log: a filter of {bytes} B, at most {max} B"))
            }
            Setting::Log(_) => Ok(()),
            Setting::NamespaceBytes { name, .. } | Setting::NamespaceObjects { name, .. } => {
                if name.is_empty() {
                    return invalid("the default namespace has no limits of its own".to_owned());
                }
                self.home.namespace(name).map(drop).map_err(store_error)
            }
        }
    }

    fn apply_setting(&mut self, setting: Setting) -> Result<(), WireError> {
        match setting {
            Setting::Memory(bytes) => {
                self.resize.begin(&self.home, bytes, None);
            }
            Setting::ClientBytes(max) => {
                self.settings.current_mut().client_bytes = max;
                self.follow_quotas();
            }
            Setting::ClientObjects(max) => {
                self.settings.current_mut().client_objects = max;
                self.follow_quotas();
            }
            Setting::Cache(max) => {
                self.settings.current_mut().cache = max;
                self.set_cache(max);
            }
            Setting::IsEvicting(is_evicting) => {
                self.settings.current_mut().is_evicting = is_evicting;
                let policy: Box<dyn EvictionPolicy> =
                    if is_evicting { Box::new(Lru) } else { Box::new(ByHand) };
                self.set_eviction_policy(policy);
            }
            Setting::Log(filter) => {
                self.settings.set_log(&filter)?;
                self.settings.current_mut().log = filter;
            }
            Setting::NamespaceBytes { name, max } => {
                let objects = self.home.namespace(&name).map_err(store_error)?.options.objects_max;
                self.home.set_namespace_limits(&name, max, objects).map_err(store_error)?;
            }
            Setting::NamespaceObjects { name, max } => {
                let bytes = self.home.namespace(&name).map_err(store_error)?.options.bytes_max;
                self.home.set_namespace_limits(&name, bytes, max).map_err(store_error)?;
            }
        }
        Ok(())
    }

    fn follow_quotas(&mut self) {
        let NodeSettings { client_bytes, client_objects, .. } = self.settings.current();
        self.set_quotas(Quotas {
            client_bytes_max: client_bytes,
            client_objects_max: client_objects,
        });
    }

    /// Limits the memory of replicas, and drops those beyond it that no client holds.
    fn set_cache(&mut self, max: Option<u64>) {
        self.replicas.bytes_max = max;
        let Some(max) = max else { return };
        if let Err(error) = self.replicas.keep_below(&mut self.home, max, Length(0)) {
            // They are dropped once they are not held, before another replica is made.
            tracing::debug!(%error, "held replicas exceed the cache");
        }
    }
}
