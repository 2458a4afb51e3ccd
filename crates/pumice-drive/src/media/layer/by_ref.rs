//! Media by reference, for code that opens a drive several times on one medium, and for tests that
//! observe or damage the medium of a drive.

use std::rc::Rc;

use super::Layer;
use crate::media::Medium;

impl<M: Medium> Layer for &M {
    type Inner = M;

    fn inner(&self) -> &M {
        self
    }
}

impl<M: Medium> Layer for Rc<M> {
    type Inner = M;

    fn inner(&self) -> &M {
        self
    }
}
