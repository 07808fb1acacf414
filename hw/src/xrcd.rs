use crate::Device;
/// x
#[derive(Debug, Clone)]
pub struct Xrcd(Device);
impl Xrcd {
    pub(crate) fn id(&self) -> u32 {
        0
    }
    pub(crate) fn device(&self) -> &Device {
        &self.0
    }
}
