//! Media by reference: code that opens a drive several times on one medium lends the medium, and so
//! do tests that watch or damage the medium of a drive.

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
