//! Tickets bind a connection to an incarnation of a member.
//!
//! A node requests a ticket from a peer over the control channel, where the peer knows its name and
//! incarnation. The first frame of a connection carries the ticket. A connection therefore cannot
//! outlive its incarnation, and plain connections admit only members.

use std::collections::HashMap;
use std::fmt;

use crate::member::MemberLife;

/// Bytes of a ticket: infeasible to guess.
pub const TICKET_BYTES: usize = 32;

/// Validity of a ticket: a round trip and a TLS handshake on a slow link.
pub const TICKET_MS: u64 = 10_000;

/// Maximum unused tickets of one member: several times its number of connections.
pub const TICKETS_PER_MEMBER_MAX: usize = 64;

/// A ticket. Its bytes are a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket([u8; TICKET_BYTES]);

impl Ticket {
    /// A ticket of random bytes.
    ///
    /// # Errors
    /// [`TicketError::NoRandom`].
    pub fn random() -> Result<Self, TicketError> {
        let mut bytes = [0; TICKET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| TicketError::NoRandom(error.to_string()))?;
        Ok(Self(bytes))
    }

    /// A ticket from received bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; TICKET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes to send.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; TICKET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// A ticket was not issued, or not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The member has too many unused tickets.
    #[error("{waiting} tickets of {member} are unused, at most {TICKETS_PER_MEMBER_MAX}")]
    TooMany {
        /// The member.
        member: MemberLife,
        /// Number of unused tickets.
        waiting: usize,
    },
    /// The ticket was never issued, or is already used.
    #[error("the ticket is unknown or was used before")]
    Unknown,
    /// The ticket is too old.
    #[error("the ticket of {member} is {age_ms} ms old, at most {TICKET_MS}")]
    Expired {
        /// Member of the ticket.
        member: MemberLife,
        /// Age of the ticket.
        age_ms: u64,
    },
    /// The ticket was presented by another node.
    #[error("the ticket is of {member}, the certificate of {certificate}")]
    OtherMember {
        /// Member of the ticket.
        member: MemberLife,
        /// The member that presented the ticket.
        certificate: String,
    },
    /// The system has no random bytes.
    #[error("no random bytes: {0}")]
    NoRandom(String),
}

/// The tickets that a node has issued. Time is an argument.
#[derive(Debug, Default)]
pub struct Tickets {
    issued: HashMap<Ticket, (MemberLife, u64)>,
}

impl Tickets {
    /// Issues a ticket for one connection of a member.
    ///
    /// # Errors
    /// [`TicketError::TooMany`], [`TicketError::NoRandom`].
    pub fn issue(&mut self, member: &MemberLife, now_ms: u64) -> Result<Ticket, TicketError> {
        self.issued.retain(|_, (_, issued_ms)| now_ms.saturating_sub(*issued_ms) <= TICKET_MS);
        let waiting = self.issued.values().filter(|(of, _)| of.name == member.name).count();
        if waiting >= TICKETS_PER_MEMBER_MAX {
            return Err(TicketError::TooMany { member: member.clone(), waiting });
        }
        let ticket = Ticket::random()?;
        self.issued.insert(ticket, (member.clone(), now_ms));
        Ok(ticket)
    }

    /// Redeems a ticket, which becomes invalid even on failure. With TLS, `certificate` is the
    /// member that the certificate names.
    ///
    /// # Errors
    /// [`TicketError::Unknown`], [`TicketError::Expired`], [`TicketError::OtherMember`].
    pub fn redeem(
        &mut self,
        ticket: &Ticket,
        certificate: Option<&str>,
        now_ms: u64,
    ) -> Result<MemberLife, TicketError> {
        let (member, issued_ms) = self.issued.remove(ticket).ok_or(TicketError::Unknown)?;
        let age_ms = now_ms.saturating_sub(issued_ms);
        if age_ms > TICKET_MS {
            return Err(TicketError::Expired { member, age_ms });
        }
        match certificate {
            Some(name) if name != member.name => {
                Err(TicketError::OtherMember { member, certificate: name.to_owned() })
            }
            _ => Ok(member),
        }
    }

    /// Revokes all tickets of an incarnation that has ended.
    pub fn revoke(&mut self, member: &MemberLife) {
        self.issued.retain(|_, (of, _)| of != member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, incarnation: u64) -> MemberLife {
        MemberLife { name: name.to_owned(), incarnation }
    }

    #[test]
    fn a_ticket_admits_one_connection() {
        let mut tickets = Tickets::default();
        let a = member("a", 3);
        let ticket = tickets.issue(&a, 0).unwrap();
        assert_eq!(tickets.redeem(&ticket, Some("a"), TICKET_MS), Ok(a));
        assert_eq!(tickets.redeem(&ticket, Some("a"), TICKET_MS), Err(TicketError::Unknown));
    }

    #[test]
    fn late_foreign_and_revoked_tickets_are_refused() {
        let mut tickets = Tickets::default();
        let a = member("a", 3);
        let ticket = tickets.issue(&a, 0).unwrap();
        let age_ms = TICKET_MS + 1;
        let expired = TicketError::Expired { member: a.clone(), age_ms };
        assert_eq!(tickets.redeem(&ticket, None, age_ms), Err(expired));
        let ticket = tickets.issue(&a, 0).unwrap();
        let other = TicketError::OtherMember { member: a.clone(), certificate: "b".into() };
        assert_eq!(tickets.redeem(&ticket, Some("b"), 1), Err(other));
        let ticket = tickets.issue(&a, 0).unwrap();
        let next = tickets.issue(&member("a", 4), 0).unwrap();
        tickets.revoke(&a);
        assert_eq!(tickets.redeem(&ticket, None, 1), Err(TicketError::Unknown));
        assert_eq!(tickets.redeem(&next, None, 1), Ok(member("a", 4)));
        assert_eq!(tickets.redeem(&Ticket([0; 32]), None, 1), Err(TicketError::Unknown));
    }

    #[test]
    fn unused_tickets_are_limited_and_expire() {
        let mut tickets = Tickets::default();
        let a = member("a", 1);
        for _ in 0..TICKETS_PER_MEMBER_MAX {
            tickets.issue(&a, 0).unwrap();
        }
        let waiting = TICKETS_PER_MEMBER_MAX;
        let refused = TicketError::TooMany { member: a.clone(), waiting };
        assert_eq!(tickets.issue(&a, 1), Err(refused));
        tickets.issue(&member("b", 1), 1).unwrap();
        tickets.issue(&a, TICKET_MS + 1).unwrap();
    }
}
