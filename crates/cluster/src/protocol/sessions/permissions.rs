//! Access checks for remote clients and for other nodes: the rules of [`crate::protocol::rights`]
//! applied to each message.

use farrow_store::{NamespaceId, RemoteClient};
use farrow_wire::rights::{Rights, Rule, RuleError};
use farrow_wire::{ImportStep, NamespaceSpec, NotPermitted, ReplyBody, RequestBody, WireError};

use crate::protocol::action::answer_to;
use crate::protocol::context::ReplyTo;
use crate::protocol::convert::store_error;
use crate::protocol::core::barriers::right_for;
use crate::protocol::core::cluster_record::RecordParts;
use crate::protocol::core::namespaces::create_namespace;
use crate::protocol::identity::node_key;
use crate::protocol::rights::RightsTable;
use crate::protocol::state::NodeState;
use crate::protocol::{Action, SessionId};

/// Permission that a request of a remote client needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemoteNeed {
    /// None: the request gives something back, or concerns what the remote client has.
    Nothing,
    /// No right is enough: only a client of this node may, for this reason.
    OwnClient(&'static str),
    /// Any right at all.
    Any,
    /// This right.
    Right(Rights),
}

fn need(body: &RequestBody) -> RemoteNeed {
    match body {
        RequestBody::Grant { .. }
        | RequestBody::Room(_)
        | RequestBody::EntryPages { .. }
        | RequestBody::Reserve { .. }
        | RequestBody::ReserveObjects { .. }
        | RequestBody::Seal { .. }
        | RequestBody::Import { step: ImportStep::Bring | ImportStep::Seal { .. }, .. }
        | RequestBody::Pin { is_pinned: true, .. } => RemoteNeed::Right(Rights::WRITE),
        RequestBody::Sync { ask, .. } => RemoteNeed::Right(right_for(ask)),
        // An empty renewal only gives names back.
        RequestBody::Renew { names, .. } if !names.is_empty() => RemoteNeed::Right(Rights::WRITE),
        RequestBody::ReservedObjects { objects } if *objects > 0 => {
            RemoteNeed::Right(Rights::WRITE)
        }
        RequestBody::Delete { .. }
        | RequestBody::Evict { .. }
        | RequestBody::Pin { is_pinned: false, .. } => RemoteNeed::Right(Rights::DELETE),
        RequestBody::Wait { .. }
        | RequestBody::Restore { .. }
        | RequestBody::Pages { .. }
        | RequestBody::Watch(_)
        | RequestBody::FindLost { .. } => RemoteNeed::Right(Rights::READ),
        // This node may read more at a third one than the client's node may.
        RequestBody::Fetch { .. } | RequestBody::ListAt { .. } | RequestBody::FindAt { .. } => {
            RemoteNeed::OwnClient(
                "objects of other nodes are brought for clients of this machine only",
            )
        }
        // These are the ids of objects of all namespaces.
        RequestBody::Overview { held_max: 1.., .. } => {
            RemoteNeed::OwnClient("held objects are listed for clients of this machine only")
        }
        RequestBody::HoldBlock
        | RequestBody::Stats
        | RequestBody::Overview { .. }
        | RequestBody::Namespaces
        | RequestBody::Rules
        | RequestBody::Nodes => RemoteNeed::Any,
        // Requests reserved to the node's own users are rejected elsewhere. A first message is
        // checked once its namespace is known.
        RequestBody::CreateNamespace(_)
        | RequestBody::DropNamespace { .. }
        | RequestBody::SetRule(_)
        | RequestBody::RemoveRule { .. }
        | RequestBody::Forget { .. }
        | RequestBody::Set(_)
        | RequestBody::Drain(_)
        | RequestBody::Shutdown
        | RequestBody::Handover { .. }
        | RequestBody::Hello(_)
        | RequestBody::Listen(_)
        | RequestBody::OpenLazy(_)
        | RequestBody::Renew { .. }
        | RequestBody::ReservedObjects { .. }
        | RequestBody::UnreserveObjects { .. }
        | RequestBody::Release { .. }
        | RequestBody::Unreserve { .. }
        | RequestBody::Confirm { .. }
        | RequestBody::ConfirmEarlier
        | RequestBody::EndLeases { .. }
        | RequestBody::Reclaim
        | RequestBody::Cancel { .. }
        | RequestBody::Import { step: ImportStep::Abandon, .. }
        | RequestBody::Goodbye => RemoteNeed::Nothing,
    }
}

impl NodeState {
    /// Sets rules, such as those of the command line at each start.
    ///
    /// # Errors
    ///
    /// The table is full, or the region cannot be written.
    pub fn set_rules(&mut self, rules: Vec<Rule>) -> Result<(), WireError> {
        if rules.is_empty() {
            return Ok(());
        }
        let mut table = self.rules.clone();
        for rule in rules {
            table.set(rule).map_err(rule_error)?;
        }
        self.follow(table)
    }

    pub(in crate::protocol) fn set_rule(&mut self, rule: Rule) -> Result<ReplyBody, WireError> {
        self.set_rules(vec![rule]).map(|()| ReplyBody::Done)
    }

    pub(in crate::protocol) fn remove_rule(
        &mut self,
        namespace: &str,
        node: &str,
    ) -> Result<ReplyBody, WireError> {
        let mut table = self.rules.clone();
        if !table.remove(namespace, node) {
            let what = format!("rule for node {node:?} in namespace {namespace:?}");
            return Err(WireError::NotFound { what });
        }
        self.follow(table).map(|()| ReplyBody::Done)
    }

    pub(in crate::protocol) fn rules(&self) -> ReplyBody {
        ReplyBody::Rules(self.rules.iter().collect())
    }

    /// Stores another table of rules, which applies to all messages from now on.
    fn follow(&mut self, table: RightsTable) -> Result<(), WireError> {
        let (home, parts, drain) = self.record();
        RecordParts { rules: &table, ..parts }.keep(home, drain)?;
        self.rules = table;
        self.publish_rules();
        let remote: Vec<_> = self.clients.of_other_nodes().collect();
        for (session, remote_client, namespace) in remote {
            self.clients.set_rights(session, self.rights_in(namespace, remote_client));
        }
        Ok(())
    }

    /// Passes the rules and the namespaces to the threads of the network fabric.
    pub(in crate::protocol) fn publish_rules(&self) -> ReplyBody {
        self.replicas.publish_rules(&self.rules, &self.home);
        ReplyBody::Done
    }

    fn rights_in(&self, namespace: NamespaceId, remote_client: RemoteClient) -> Rights {
        let mut all = self.home.namespaces();
        let name = all.find(|one| one.id == namespace).map(|one| one.options.name.as_str());
        name.map_or(Rights::NONE, |name| self.rules.of(name, remote_client.node))
    }

    /// Rights of a client in a namespace. A client of this node has all, since its user decides on
    /// its access. A remote client without any right is rejected.
    pub(in crate::protocol) fn let_in(
        &self,
        remote_client: Option<RemoteClient>,
        namespace: NamespaceId,
    ) -> Result<Rights, WireError> {
        let Some(remote_client) = remote_client else {
            return Ok(Rights::ALL);
        };
        let rights = self.rights_in(namespace, remote_client);
        if rights.is_none() {
            return Err(self.not_permitted(remote_client, namespace, Rights::READ));
        }
        Ok(rights)
    }

    /// Whether a remote client may send this request. Checked before a message has any effect.
    pub(in crate::protocol) fn check_permitted(
        &self,
        session: SessionId,
        body: &RequestBody,
    ) -> Result<(), WireError> {
        let Some(state) = self.clients.session(session) else {
            return Ok(());
        };
        let Some(remote_client) = state.peer.remote_client else {
            return Ok(());
        };
        let needs_memory = matches!(
            body,
            RequestBody::Grant { .. }
                | RequestBody::Room(_)
                | RequestBody::EntryPages { .. }
                | RequestBody::HoldBlock
        );
        if needs_memory && !state.maps_memory {
            let kind = body.kind();
            return Err(WireError::Invalid(format!("{kind} on a connection without memory")));
        }
        let missing = match need(body) {
            RemoteNeed::Nothing => return Ok(()),
            RemoteNeed::OwnClient(reason) => return Err(WireError::Denied(reason.to_owned())),
            RemoteNeed::Any if !state.rights.is_none() => return Ok(()),
            RemoteNeed::Any => Rights::READ,
            RemoteNeed::Right(right) if state.rights.has(right) => {
                // An id may be of another namespace.
                return match body {
                    RequestBody::Restore { id } => self.check_restore(remote_client, (*id).into()),
                    _ => Ok(()),
                };
            }
            RemoteNeed::Right(right) => right,
        };
        Err(self.not_permitted(remote_client, state.namespace, missing))
    }

    /// Whether the client of a session may delete objects in its namespace.
    pub(in crate::protocol) fn check_may_delete(
        &self,
        session: SessionId,
    ) -> Result<(), WireError> {
        let Some(state) = self.clients.session(session) else {
            return Ok(());
        };
        match state.peer.remote_client {
            Some(client) if !state.rights.has(Rights::DELETE) => {
                Err(self.not_permitted(client, state.namespace, Rights::DELETE))
            }
            _ => Ok(()),
        }
    }

    fn check_restore(
        &self,
        remote_client: RemoteClient,
        id: farrow_store::ObjectId,
    ) -> Result<(), WireError> {
        let namespace = self.home.namespace_of_object(id).map_err(store_error)?;
        if self.rights_in(namespace, remote_client).has(Rights::READ) {
            return Ok(());
        }
        Err(self.not_permitted(remote_client, namespace, Rights::READ))
    }

    fn not_permitted(
        &self,
        remote_client: RemoteClient,
        namespace: NamespaceId,
        right: Rights,
    ) -> WireError {
        let named = self.members().nodes.into_iter().map(|node| node.name);
        let named = named.chain(self.rules.iter().map(|rule| rule.node));
        let node = named.into_iter().find(|name| node_key(name) == remote_client.node);
        let mut namespaces = self.home.namespaces();
        let namespace = namespaces.find(|one| one.id == namespace);
        WireError::NotPermitted(NotPermitted {
            node: node.unwrap_or_else(|| format!("#{:016x}", remote_client.node)),
            namespace: namespace.map(|one| one.options.name.clone()).unwrap_or_default(),
            right: right.to_string(),
        })
    }

    pub(in crate::protocol) fn create_namespace(
        &mut self,
        spec: NamespaceSpec,
    ) -> Result<ReplyBody, WireError> {
        create_namespace(&mut self.home, spec)?;
        Ok(self.publish_rules())
    }

    /// Drops a namespace. `None`: many deleted objects, which may be of it, are freed first, and the
    /// answer follows.
    pub(in crate::protocol) fn drop_namespace(
        &mut self,
        to: ReplyTo,
        name: &str,
    ) -> Result<Option<ReplyBody>, WireError> {
        match self.reclaim.free_some(&mut self.home) {
            true => self.namespace_drops.push(to, name).map(|()| None),
            false => self.drop_freed_namespace(name).map(Some),
        }
    }

    /// Answers the drops that waited, once all deleted objects that no client holds are freed.
    /// `is_over`: frees them at once, since this daemon ends.
    pub(in crate::protocol) fn drop_namespaces(&mut self, is_over: bool, out: &mut Vec<Action>) {
        if self.namespace_drops.is_empty() || (!is_over && self.reclaim.is_behind()) {
            return;
        }
        if is_over {
            self.reclaim.free_all(&mut self.home);
        }
        for (to, name) in self.namespace_drops.take() {
            out.push(answer_to(to.session, to.seq, self.drop_freed_namespace(&name)));
        }
    }

    fn drop_freed_namespace(&mut self, name: &str) -> Result<ReplyBody, WireError> {
        self.home.drop_namespace(name).map_err(store_error)?;
        Ok(self.publish_rules())
    }
}

fn rule_error(error: RuleError) -> WireError {
    match error {
        RuleError::TooMany { max } => {
            WireError::TooMany { what: "rules for nodes".to_owned(), max: max as u64 }
        }
        error => WireError::Invalid(error.to_string()),
    }
}
