//! Error numbers that calls of libibverbs and librdmacm return or leave in `errno`: those that their manual
//! pages list, and others that the libraries and the kernel's RDMA code return. The numbers are those of
//! Linux on most architectures (asm-generic/errno.h).

use super::table::faults;

faults! {
    /// Why a verbs call failed (`errno`).
    Errno {
        Eperm = 1, "EPERM", "Not permitted.",
            Request Configuration AfterRepair NotExecuted None,
            cause "A limit on locked memory (RLIMIT_MEMLOCK), a missing capability (raw packets, \
                   flows), or access to the device's files.",
            advice "`ulimit -l`; capabilities; rights of /dev/infiniband.";
        Enoent = 2, "ENOENT", "There is no such object.",
            Request LocalProgram Never NotExecuted None,
            cause "The handle, key, address or table entry named does not exist; for ibv_start_poll, \
                   nothing has completed.",
            advice "What the call names, and whether it was destroyed before.";
        Eintr = 4, "EINTR", "A signal came before the call was done.",
            Request Nobody Helps NotExecuted None,
            cause "A signal handler ran while the call waited.",
            advice "Nothing: call again.";
        Eio = 5, "EIO", "The device is gone, or failed.",
            Device Device AfterRepair Unknown CloseDevice,
            cause "The kernel took the device away from the program, or the device does not answer. \
                   Destroy calls return it too, and have to be taken as done.",
            advice "The kernel log; PCI errors; whether the driver was reloaded.";
        Enxio = 6, "ENXIO", "The device cannot do this now.",
            Request Configuration AfterRepair NotExecuted None,
            cause "What the call needs is not switched on, as flow steering in the driver.",
            advice "The driver's options; firmware settings.";
        Ebadf = 9, "EBADF", "A descriptor is not open.",
            Request LocalProgram Never NotExecuted None,
            cause "The device, channel or file was closed, here or by another thread.",
            advice "The program's order of teardown; calls that close descriptors.";
        Eagain = 11, "EAGAIN", "Not now.",
            Request Nobody Helps NotExecuted None,
            cause "Nothing is there to be taken and the descriptor does not block, or a resource is \
                   short for a moment.",
            advice "Nothing, if it is not for ever: wait until the descriptor is readable, or poll the \
                    completion queue, then call again.";
        Enomem = 12, "ENOMEM", "No memory, or a queue is full.",
            Request LocalProgram AfterRepair NotExecuted None,
            cause "For a post: the queue is full. Else: memory, locked memory or the device's own \
                   resources are used up.",
            advice "Completions that are not polled; `ulimit -l`; how many objects the device has and \
                    is capable of.";
        Eacces = 13, "EACCES", "Access is denied.",
            Request Configuration AfterRepair NotExecuted None,
            cause "The rights of the device's files, of a port of the address, or of memory to be \
                   registered.",
            advice "Rights of /dev/infiniband; whether the memory is mapped writable.";
        Efault = 14, "EFAULT", "An address is not mapped.",
            Request LocalProgram Never NotExecuted None,
            cause "Memory to be registered, or a pointer that was given, is not the program's.",
            advice "Address and length that the call gave.";
        Ebusy = 16, "EBUSY", "The object is in use.",
            Request LocalProgram AfterRepair NotExecuted None,
            cause "Others still use the object that is to be destroyed, attached or changed.",
            advice "Objects that were created on it, and are not destroyed yet.";
        Enodev = 19, "ENODEV", "There is no such device, or not any more.",
            Device Configuration AfterRepair Unknown CloseDevice,
            cause "The device was removed, its driver is not loaded, or the address belongs to no RDMA \
                   device.",
            advice "`rdma link`, `ibv_devices`; the kernel log; the driver.";
        Einval = 22, "EINVAL", "An argument has a value that it cannot have.",
            Request LocalProgram Never NotExecuted None,
            cause "An attribute, flag, size or state that the device or the library does not take.",
            advice "The call's arguments against its manual page and the device's limits; for \
                    ibv_modify_qp, the state that the queue pair is in.";
        Enfile = 23, "ENFILE", "The system has no descriptors left.",
            Request Configuration AfterRepair NotExecuted None,
            cause "All programs together have more files open than the system allows. Devices and \
                   channels are files.",
            advice "fs.file-max; which program has so many open.";
        Emfile = 24, "EMFILE", "The program has no descriptors left.",
            Request LocalProgram AfterRepair NotExecuted None,
            cause "The program has more files open than it may. Devices and channels are files.",
            advice "`ulimit -n`; descriptors that are not closed.";
        Enospc = 28, "ENOSPC", "No room.",
            Request LocalProgram AfterRepair NotExecuted None,
            cause "The device or the table has no place left for another such object.",
            advice "How many objects the device has and is capable of.";
        Enosys = 38, "ENOSYS", "The kernel or the provider does not have this call.",
            Request Configuration Never NotExecuted None,
            cause "An older kernel or library, or a device without the feature. Older libraries answer \
                   so where newer ones say EOPNOTSUPP.",
            advice "Versions of kernel, driver and rdma-core; the device's capabilities.";
        Enodata = 61, "ENODATA", "There is no such entry.",
            Request Configuration AfterRepair NotExecuted None,
            cause "A GID or another table entry that was asked for is empty, or there is no answer for \
                   it.",
            advice "The GID table: addresses of the interface may not be set yet.";
        Eopnotsupp = 95, "EOPNOTSUPP", "Not supported.",
            Request Configuration Never NotExecuted None,
            cause "The device or its provider does not have the feature.",
            advice "The device's capabilities; versions of driver, firmware and rdma-core.";
        Eaddrinuse = 98, "EADDRINUSE", "The address is in use.",
            Request Configuration AfterRepair DoesNotApply None,
            cause "Another program listens at this address and port.",
            advice "Which program has the port.";
        Eaddrnotavail = 99, "EADDRNOTAVAIL", "The address is not there.",
            Path Configuration AfterRepair DoesNotApply Resolve,
            cause "No interface has the address, or the address is not in the GID table (any more).",
            advice "Addresses of the interface; the GID table.";
        Enetdown = 100, "ENETDOWN", "The network interface is down.",
            Port Fabric Helps DoesNotApply WaitForPort,
            cause "The interface under the device was taken down, or its link is down.",
            advice "`ip link`; cable; switch port.";
        Enetunreach = 101, "ENETUNREACH", "The network cannot be reached.",
            Path Configuration Helps DoesNotApply Resolve,
            cause "There is no route to the address.",
            advice "`ip route get`; the interface's address.";
        Econnreset = 104, "ECONNRESET", "The peer reset the connection.",
            Connection RemoteProgram Helps Unknown Reconnect,
            cause "The peer's program or machine went away while the connection was used or made.",
            advice "The peer's program and its log.";
        Eisconn = 106, "EISCONN", "It is connected already.",
            Request LocalProgram Never DoesNotApply None,
            cause "A connect, or a notification of the first message, on a connection that exists. For \
                   rdma_notify it is no failure.",
            advice "The program's order of calls.";
        Enotconn = 107, "ENOTCONN", "It is not connected.",
            Connection LocalProgram Helps NotExecuted Reconnect,
            cause "A call that needs a connection, before it is made or after it is gone.",
            advice "Whether the connection was lost before, and what reported it.";
        Etimedout = 110, "ETIMEDOUT", "No answer in time.",
            Connection Fabric Helps Unknown Reconnect,
            cause "The peer, the subnet manager or the device did not answer in time.",
            advice "Whether the peer lives; its port; the subnet manager; the kernel log.";
        Econnrefused = 111, "ECONNREFUSED", "The peer refuses the connection.",
            Connection RemoteProgram AfterRepair DoesNotApply Reconnect,
            cause "Nobody listens there, or the peer's program refused.",
            advice "Whether the peer's program runs and listens.";
        Ehostunreach = 113, "EHOSTUNREACH", "The peer cannot be reached.",
            Path Fabric Helps DoesNotApply Resolve,
            cause "There is no route or no neighbour for the address, or the subnet manager has no path.",
            advice "`ip neigh`, `ip route get`; the peer's port; the subnet manager.";
        Eremoteio = 121, "EREMOTEIO", "The device's firmware refused a command.",
            Request Device AfterRepair NotExecuted None,
            cause "The driver asked the device for something, and its firmware answered with an error \
                   that has no number of its own.",
            advice "The kernel log, which has the firmware's code; firmware.";
    }
}
