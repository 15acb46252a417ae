//! Every back end keeps every contract of a fabric.

mod shm_files {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::SHM_FILES);
}

mod memfd {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::MEMFD);
}

mod device {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::DEVICE);
}

mod device_node_local {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::DEVICE_NODE_LOCAL);
}

mod passed_memfd {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::PASSED_MEMFD);
}

mod passed_device {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::PASSED_DEVICE);
}

mod incoherent_64 {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::INCOHERENT_64);
}

mod incoherent_128 {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::INCOHERENT_128);
}
