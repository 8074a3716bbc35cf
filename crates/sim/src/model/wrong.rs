//! What is wrong with a request, and which of several faults a server may name.

use super::expect::Expect;

/// What is wrong with a request.
#[derive(Debug, Default)]
pub(super) struct Wrong {
    /// The first of the RFC's steps that fails, with its codes.
    first: Vec<u16>,
    /// Codes of faults whose order the RFC leaves open.
    any: Vec<u16>,
    /// Codes for what is full; asked last.
    full: Vec<u16>,
    malformed: bool,
}

impl Wrong {
    pub(super) fn step(&mut self, code: u16) {
        self.step_of(&[code]);
    }

    pub(super) fn step_of(&mut self, codes: &[u16]) {
        if self.first.is_empty() {
            self.first.extend(codes);
        }
    }

    pub(super) fn also(&mut self, code: u16) {
        self.any.push(code);
    }

    pub(super) fn full(&mut self, code: u16) {
        self.full.push(code);
    }

    /// Takes note of a malformed attribute, which may be found before or after other faults.
    pub(super) fn malformed(&mut self) {
        self.malformed = true;
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.first.is_empty() && self.any.is_empty() && !self.malformed
    }

    pub(super) fn verdict(mut self) -> Option<Expect> {
        let any = !self.any.is_empty();
        let mut codes = self.first;
        codes.append(&mut self.any);
        if self.malformed {
            codes.push(400);
        }
        if codes.is_empty() || any {
            codes.append(&mut self.full);
        }
        (!codes.is_empty()).then(|| Expect::errors(codes))
    }
}
